"""RequestEvent: a step of a request, or its failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.report import StepTiming


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A request advanced by one step; it is finished when the outcome has a finish reason."""

    request_id: int
    plan: Plan
    outcome: StepOutcome
    timing: StepTiming | None = None
    """Times of the group's step; None where they are not measured."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request ended with an error; no further event follows."""

    request_id: int
    error: Exception


RequestEvent: TypeAlias = RequestStep | RequestFailure
"""`request_id` depends on the source of the event: the scheduler's own id, a client's number, or an index."""
