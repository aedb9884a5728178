"""StagingBuffer: K/V that the branches of a step have staged for a commit in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.protocol.plan import Spans


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """The K/V and boundary rows that all branches of a step have staged, in the model's dtype."""

    kv: Tensor  # [L, 2, P, K, E]: keys and values of the P staged rows
    boundaries: Tensor  # [Q, D]: the boundary row of each staging lane; see `KVCache`


@dataclass(frozen=True, slots=True, eq=False)
class StagedLane:
    """The part of a `StagedStep` that belongs to one branch."""

    step: StagedStep
    rows: range
    """Rows of the branch among the P staged rows."""
    boundary_row: int
    """Index among the Q boundary rows."""
    start: int
    """The first position whose row was computed. The K/V of staged positions before it are in the slot."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedCommit:
    """Staged K/V that a step commits to a slot, or that another worker has sent for it."""

    staged: StagedLane
    slot: int
    spans: Spans


def fresh_positions(spans: Spans, start: int) -> npt.NDArray[np.int64]:
    """The positions of `spans` from `start` on, which a lane computes: int64 [positions]."""
    parts = [np.arange(max(span.start, start), span.stop) for span in spans]
    return np.concatenate([np.zeros(0, np.int64), *parts])


class StagingBuffer:
    """Staged lanes by slot and branch. The lanes of a slot are of one step."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # slot → the step that staged its K/V
        self._lanes: dict[int, dict[int, StagedLane]] = {}  # slot → branch → staged lane

    def add_step(self, lanes: Sequence[Lane], rows: Sequence[range], step: StagedStep) -> None:
        """Keep the K/V that the lanes of a step stage, in place of earlier K/V of the same slots. `rows` has the
        staged rows of each staging lane, in order."""
        staging = [lane for lane in lanes if lane.to_stage]
        for at, (lane, of_lane) in enumerate(zip(staging, rows, strict=True)):
            if lane.request is not None:
                self.retain_step(lane.slot, lane.request.plan.step)
                self._steps[lane.slot] = lane.request.plan.step
                self._lanes.setdefault(lane.slot, {})[lane.index] = StagedLane(step, of_lane, at, lane.start)

    def get(self, slot: int, step: int, branch: int | None) -> StagedLane | None:
        """The lane that a branch staged in that step, or None. `branch` is None where all of them stage the same."""
        if self._steps.get(slot) != step:
            return None
        lanes = self._lanes[slot]
        return next(iter(lanes.values())) if branch is None else lanes.get(branch)

    def retain_step(self, slot: int, step: int | None) -> None:
        if self._steps.get(slot) != step:
            self.clear(slot)

    def clear(self, slot: int) -> None:
        self._steps.pop(slot, None)
        self._lanes.pop(slot, None)
