"""The objects that OpenAI's API does not have: defaults, health, version, workers and cancelled requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cluster.openai.request_model import RequestModel
from cluster.openai.response_model import ResponseModel

MAX_WORKERS = 1024
"""Each of them is an actor that waits for its place, if there is none."""


class CancelledRequest(ResponseModel):
    """A request that was cancelled."""

    id: str
    object: Literal["request"]
    cancelled: bool


class ScaleRequest(RequestModel):
    """How many branch workers each group of a model should have."""

    num_workers: int = Field(ge=1, le=MAX_WORKERS)
    """In each of the model's groups (replicas) that run now. Those that start later begin with
    `group.num_workers` of the model's configuration."""


class WorkersOfGroup(ResponseModel):
    """The branch workers of one decode group."""

    workers: int
    """Workers that take part in steps."""
    coming: int
    """Workers that wait for a place in the cluster, load the model, or wait for the next step."""
    wanted: int
    """How many there should be."""
    problem: str | None
    """Why the last attempt to add a worker failed; null if it did not fail."""


class ModelWorkers(ResponseModel):
    """The branch workers of a model's decode groups."""

    object: Literal["model.workers"]
    model: str
    groups: list[WorkersOfGroup]


class ModelDefaults(ResponseModel):
    """What requests to a model get where they set nothing."""

    object: Literal["model.defaults"]
    model: str
    decoder: str
    settings: dict[str, dict[str, JsonValue]]
    """For each decoder the values of its decode settings, for requests that name it and nothing else, or what
    `accepted_with` has for it."""
    refused: dict[str, str]
    """Decoders that contradict other settings of the model's configuration, each with the error of such a request."""
    accepted_with: dict[str, dict[str, JsonValue]]
    """Decoders of `refused` that a request may name if it has these settings too."""
    max_model_len: int
    """Positions of prompt and answer together."""
    is_demo_model: bool
    """Whether it is the model in the package, which solves word problems only."""


class GroupHealth(ResponseModel):
    """The state of a model's decode groups."""

    model: str
    status: str
    replicas: int


class Health(ResponseModel):
    """The state of all decode groups."""

    status: Literal["ok"]
    groups: list[GroupHealth]


class Version(ResponseModel):
    """The version of lopa-ray."""

    version: str
