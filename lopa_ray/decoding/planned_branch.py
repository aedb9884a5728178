"""PlannedBranch: a branch of the coming step. Its window says which rows are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Fork
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.protocol.plan import Segment, Spans

CanvasT = TypeVar("CanvasT", bound=Canvas)


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that a call feeds, reads, scores and stages on a branch. See `Plan` and `Branch`."""

    input_span: range
    segments: tuple[Segment, ...]
    scored: range
    cached: Spans = ()
    to_stage: Spans = ()
    stage_shared: bool = False
    causal_stop: int = 0
    draft_adapter: bool = False


@dataclass(frozen=True, slots=True)
class PlannedBranch(Generic[CanvasT]):
    fork: Fork
    canvas: CanvasT
    constraint_state: ConstraintState | None
