"""The request that changes how many workers a model's groups have."""

from __future__ import annotations

from pydantic import Field

from cluster.openai.request_model import RequestModel

MAX_WORKERS = 1024
"""Each of them is an actor that waits for its place, if there is none."""


class ScaleRequest(RequestModel):
    """How many branch workers each group of a model should have."""

    num_workers: int = Field(ge=1, le=MAX_WORKERS)
    """In each of the model's groups (replicas) that run now. Those that start later begin with
    `group.num_workers` of the model's configuration."""
