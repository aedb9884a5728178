"""The objects of responses that OpenAI's API does not have: health, version, workers and cancelled requests."""

from __future__ import annotations

from typing import Literal

from cluster.openai.response_model import ResponseModel


class CancelledRequest(ResponseModel):
    """A request that was cancelled."""

    id: str
    object: Literal["request"]
    cancelled: bool


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
