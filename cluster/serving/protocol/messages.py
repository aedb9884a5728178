"""The messages about groups; those about requests are in `cluster.choices.messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa_ray.errors import LopaError


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """The only output of a request that is wrong, between a replica and the ingress, which raises its error.

    Serve writes what a replica raises to its log, and an error message may repeat what was sent.
    """

    error: LopaError


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a model's groups."""

    model: str
    status: str
    """HEALTHY, or what Serve is doing about them."""
    replicas: int
    """Groups that take requests."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The branch workers of one group."""

    workers: int
    """Workers that take part in steps."""
    coming: int
    """Workers that wait for a place in the cluster, load the model, or wait for the next step."""
    wanted: int
    """How many there should be."""
    problem: str | None
    """Why the last attempt to get another one failed; None once one came in after it."""


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    """The metrics of one group."""

    model: str
    replica: str
    """Serve's id of the replica that has the group."""
    text: str | None
    """Prometheus' text format; None: the replica is starting, or did not answer."""


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What requests to a model get where they set nothing."""

    decoder: str
    settings: Mapping[str, Mapping[str, Any]]
    """Decoder → the values that its decode settings have, as plain values, if a request names that decoder alone, or
    with what `accepted_with` has for it."""
    refused: Mapping[str, str]
    """Decoder that contradicts other settings of the configuration → the error of a request that names it alone."""
    accepted_with: Mapping[str, Mapping[str, Any]]
    """Decoder of `refused` → settings with which a request may name it; not all of these decoders have an entry."""
    max_model_len: int
    """Positions of prompt and answer together."""
    is_demo_model: bool
    """Whether it is the model in the package, which solves word problems only."""
