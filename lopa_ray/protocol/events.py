"""What becomes of a request, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lopa_ray.protocol.plan import Plan, StepOutcome, StepTiming


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A request advanced by one step; it is finished when the outcome has a finish reason."""

    request_id: int
    plan: Plan
    outcome: StepOutcome
    timing: StepTiming | None = None
    """Of the group's step; None where it is not measured."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request ended with an error; no further event follows."""

    request_id: int
    error: Exception


RequestEvent: TypeAlias = RequestStep | RequestFailure
"""Who hands it out says what its `request_id` means: the scheduler's own, a client's number, or an index."""
