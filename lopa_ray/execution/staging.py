"""StagingBuffer: K/V that the branches of a step have ready for a commit, which the next step may order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.protocol.plan import Spans


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """What all branches of a step have staged, gathered at once."""

    kv: Tensor
    """[L, 2, P, K, E]."""
    boundaries: Tensor
    """Last hidden rows of first spans, [Q, D]; see `KVCache.boundary`."""

    @classmethod
    def gather(cls, columns: StepColumns[Tensor], rows: Tensor, kv: Tensor) -> Self:
        """Of the rows [R + S, D] and the keys and values [L, 2, R, K, E] of a forward, in the model's dtype.

        All layers are gathered at once.
        """
        return cls(kv.index_select(2, columns.stage_rows), rows.index_select(0, columns.stage_boundaries))


@dataclass(frozen=True, slots=True, eq=False)
class StagedLane:
    """The part of one branch."""

    step: StagedStep
    rows: range
    """Among the P."""
    boundary_row: int
    """Among the Q."""
    start: int
    """The first position whose row was computed: staged K/V of positions before it are in the slot."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingCommit:
    """Staged K/V that a step commits to a slot."""

    staged: StagedLane
    slot: int
    spans: Spans

    def positions(self) -> npt.NDArray[np.int64]:
        """Of the staged rows: int64 [positions]."""
        start = self.staged.start
        return np.concatenate([np.arange(max(span.start, start), span.stop) for span in self.spans])


class StagingBuffer:
    """What is staged, by slot and branch; of each slot, what one step has staged."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        """Slot → the step that staged what is there."""
        self._lanes: dict[int, dict[int, StagedLane]] = {}
        """Slot → branch → its part."""

    def add(self, slot: int, step: int, branch: int, staged: StagedLane) -> None:
        """Set aside what a branch has computed; what an earlier step staged in that slot goes."""
        self.retain_step(slot, step)
        self._steps[slot] = step
        self._lanes.setdefault(slot, {})[branch] = staged

    def add_step(self, lanes: Sequence[Lane], rows: Sequence[range], step: StagedStep) -> None:
        """Set aside what the lanes of a step stage; `rows`: of each of them, in order, those among the staged ones."""
        staging = [lane for lane in lanes if lane.to_stage]
        for at, (lane, of_lane) in enumerate(zip(staging, rows, strict=True)):
            if lane.request is not None:
                staged = StagedLane(step, of_lane, at, lane.start)
                self.add(lane.slot, lane.request.plan.step, lane.index, staged)

    def get(self, slot: int, step: int, branch: int | None) -> StagedLane | None:
        """What a branch staged in that step, or with None any branch, where all have the same."""
        if self._steps.get(slot) != step:
            return None
        lanes = self._lanes[slot]
        return next(iter(lanes.values())) if branch is None else lanes.get(branch)

    def retain_step(self, slot: int, step: int | None) -> None:
        """Drop what was staged in the slot by any other step."""
        if self._steps.get(slot) != step:
            self.clear(slot)

    def clear(self, slot: int) -> None:
        """Drop what was staged in the slot."""
        self._steps.pop(slot, None)
        self._lanes.pop(slot, None)
