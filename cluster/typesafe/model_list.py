"""The models that are served, as TypeSafe's protocol lists them."""

from __future__ import annotations

from cluster.openai.response_model import ResponseModel


class ModelMetadata(ResponseModel):
    name: str
    description: str
    release_date: str
    """The day on which this server began, YYYY-MM-DD: a checkpoint does not say its own."""


class ModelMetadataList(ResponseModel):
    models: list[ModelMetadata]
