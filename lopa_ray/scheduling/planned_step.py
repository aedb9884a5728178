"""PlannedStep: a step that is in flight, from its plan until its reports are processed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.branch_assignment import BranchAssignment
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.running_request import RunningRequest

STEPS_IN_FLIGHT = 2  # with overlap: one is computed while the other is planned, packed or processed


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The requests of a step, and what has to be known of it when it has succeeded."""

    number: int
    entries: tuple[RunningRequest, ...]  # in the order in which they got their slots
    assignment: BranchAssignment
    waiting_branch_rows: int  # of the long step whose turn it is; 0: no request has a long step
    part_rows: int  # rows of that long step that are in this step, of all workers
    evictions: tuple[int, ...]

    def step_plans(self, epoch: int) -> list[StepPlan]:
        """The plan of each worker, by rank; the requests are in the same order on all of them."""
        ranks = range(len(self.assignment.load))
        requests = (tuple(entry.scheduled(rank) for entry in self.entries) for rank in ranks)
        return [StepPlan(epoch, self.number, of_rank, self.evictions) for of_rank in requests]

    def confirm_prefixes(self, index: PrefixIndex, entries: Sequence[RunningRequest]) -> None:
        """The workers have evicted, loaded and saved the step's prefixes. `entries`: requests that have not ended."""
        index.confirm_evictions(self.evictions)
        for entry in entries:
            index.touch(entry.stored_prefix)
            if entry.save_prefix is not None:
                index.insert(entry.save_prefix)
                entry.save_prefix = None
