"""RequestEvent: a step of a request, or its failure. StepEvents: the events of a group's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import StepTiming


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A request advanced by one step; it is finished when the outcome has a finish reason."""

    request_key: int
    plan: Plan
    outcome: StepOutcome
    timing: StepTiming | None = None
    cached_positions: int = 0
    """Positions of the prompt that the step did not compute, since their K/V were stored."""
    saved_positions: int = 0
    """Positions of the prompt that are stored for later requests from now on."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request ended with an error; no further event follows."""

    request_key: int
    error: Exception


RequestEvent: TypeAlias = RequestStep | RequestFailure
"""`request_key` identifies the request to the receiver of the event. It is the scheduler's id inside of a group, and
the index of the session in the events that an engine yields."""


@dataclass(frozen=True, slots=True)
class StepEvents:
    """The events of a step, as the master sends them to its client. `timing` is None between steps."""

    events: tuple[RequestEvent, ...]
    timing: StepTiming | None
    states: Mapping[int, bytes] = field(default_factory=dict)
    """The session's state of each request that goes on (see `RequestSession.export_state`), for a client's journal."""
