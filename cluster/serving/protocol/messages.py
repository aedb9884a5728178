"""The messages about groups; messages about requests are in `cluster.choices.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from lopa_ray.errors import LopaError


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """The only output of a request that is wrong; the ingress raises its error. Serve writes what a replica raises to
    its log, and an error message may repeat what was sent."""

    error: LopaError


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    model: str
    replica: str  # Serve's id of the replica that has the group
    text: str | None  # Prometheus' text format; None: the replica is starting, or did not answer


class GroupMessage(BaseModel):
    """Base class of what HTTP answers as it is, descriptions included."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WorkersOfGroup(GroupMessage):
    """The branch workers of one decode group."""

    workers: int
    """Workers that take part in steps."""
    coming: int
    """Workers that wait for a place in the cluster, load the model, or wait for the next step."""
    wanted: int
    """How many there should be."""
    problem: str | None
    """Why the last attempt to add a worker failed; null if it did not fail."""


class GroupState(GroupMessage):
    """The weights of one decode group, and whether it decodes."""

    weight_version: int
    """The version of its weights; 0: the weights of its start."""
    is_paused: bool
    is_sleeping: bool


class ModelDefaults(GroupMessage):
    """Settings that requests to a model get where they set nothing."""

    object: Literal["model.defaults"]
    model: str
    decoder: str
    settings: dict[str, dict[str, JsonValue]]
    """The values of each decoder's decode settings, for requests that name it and nothing else, or what
    `accepted_with` has for it."""
    refused: dict[str, str]
    """Decoders that contradict other settings of the model's configuration, each with the error of such a request."""
    accepted_with: dict[str, dict[str, JsonValue]]
    """Decoders of `refused` that a request may name if it has these settings too."""
    max_model_len: int
    """Positions of prompt and answer together."""
    is_demo_model: bool
    """Whether it is the model in the package, which solves word problems only."""


class GroupHealth(GroupMessage):
    """The state of a model's decode groups."""

    model: str
    status: str
    replicas: int
