"""The objects that OpenAI's API does not have: health, version, workers and cancelled requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cluster.openai.request_model import RequestModel
from cluster.openai.response_model import ResponseModel
from cluster.serving.protocol.messages import GroupHealth, WorkersOfGroup

MAX_WORKERS = 1024  # each of them is an actor that waits for its place, if there is none


class CancelledRequest(ResponseModel):
    """A request that was cancelled."""

    id: str
    object: Literal["request"]
    cancelled: bool


class ScaleRequest(RequestModel):
    """How many branch workers each group of a model should have."""

    num_workers: int = Field(ge=1, le=MAX_WORKERS)
    """Workers in each of the model's groups (replicas) that run now. Groups that start later begin with
    `group.num_workers` of the model's configuration."""


class ModelWorkers(ResponseModel):
    """The branch workers of a model's decode groups."""

    object: Literal["model.workers"]
    model: str
    groups: list[WorkersOfGroup]


class Health(ResponseModel):
    """The state of all decode groups."""

    status: Literal["ok"]
    groups: list[GroupHealth]


class Version(ResponseModel):
    """The version of lopa-ray."""

    version: str
