"""The models that are served, as OpenAI's API lists them."""

from __future__ import annotations

from typing import Literal

from cluster.openai.response_model import ResponseModel


class ModelCard(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelCard]
