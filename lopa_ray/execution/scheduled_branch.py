"""ScheduledBranch: what a worker's part of a step becomes in the packed forward, branch by branch."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.execution.attention import PackedSequence
from lopa_ray.protocol.plan import ScheduledRequest, Segment, Spans


@dataclass(frozen=True, slots=True)
class ScheduledBranch:
    """A branch of a scheduled request, and its sequence in the packed forward; `index` -1 only stages K/V."""

    request: ScheduledRequest
    index: int
    sequence: PackedSequence

    def scored(self, mask_token_id: int) -> list[int]:
        """The masked positions that the branch's report is about, ascending."""
        if self.index < 0:
            return []
        ids = enumerate(self.sequence.ids, self.sequence.start)
        return [p for p, token in ids if token == mask_token_id and p in self.request.plan.scored]


def scheduled_branches(scheduled: ScheduledRequest) -> list[ScheduledBranch]:
    """The branches that this worker evaluates.

    Where all branches stage the same K/V one of them does. Without any branch a sequence of the staged span alone does.
    """
    plan = scheduled.plan
    branches: list[ScheduledBranch] = []

    def add(index: int, ids: list[int], segments: tuple[Segment, ...], to_stage: Spans) -> None:
        ids = ids[scheduled.start - plan.start :]
        segments = tuple(segment for segment in segments if segment[0] > scheduled.start)
        sequence = PackedSequence(scheduled.slot, scheduled.start, ids, segments, to_stage)
        branches.append(ScheduledBranch(scheduled, index, sequence))

    for index in scheduled.branch_indices:
        branch = plan.branches[index]
        to_stage = () if plan.stage_shared and branches else plan.to_stage
        add(index, plan.input_ids(branch), branch.segments, to_stage)
    if plan.to_stage and plan.stage_shared and not branches:
        stop = plan.to_stage[-1].stop
        segments = tuple(segment for segment in plan.branches[0].segments if segment[0] <= stop)
        add(-1, list(plan.canvas[: stop - plan.start]), segments, plan.to_stage)
    return branches
