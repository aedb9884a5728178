"""The objects that OpenAI's API does not have: health, version, workers, weights and cancelled requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cluster.openai.request_model import ModelRequest, RequestModel
from cluster.openai.response_model import ResponseModel
from cluster.serving.protocol.messages import GroupHealth, GroupState, WorkersOfGroup
from lopa_ray.scheduling.holds import Running

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


class PauseRequest(ModelRequest):
    """A pause."""

    running: Running | None = None
    """Requests that have begun end first (`wait`, the default), end now (`abort`), or go on (`keep`)."""


class UpdateWeightsRequest(PauseRequest):
    """Other weights of a model."""

    source: str
    """A folder, by its absolute path, on every machine of the model's groups: all weights, or a PEFT LoRA adapter."""
    version: int | None = Field(default=None, ge=1)
    """Above the present version. null: the next one."""


class SleepRequest(ModelRequest):
    """A sleep."""

    level: int | None = Field(default=None, ge=1, le=2)
    """1 (the default): frees K/V, and moves an accelerator's weights to the host. 2: frees both."""


class ModelState(GroupState):
    """The state that all groups of a model have reached, and each group's."""

    object: Literal["model.state"] = "model.state"
    model: str
    groups: list[GroupState]


class Health(ResponseModel):
    """The state of all decode groups."""

    status: Literal["ok"]
    groups: list[GroupHealth]


class Version(ResponseModel):
    """The version of lopa-ray."""

    version: str
