"""What a group does after a change of membership so that its next step finds all K/V. No I/O.

A commit rides on the step after the one that staged its K/V, and names the worker that has them. When
workers are lost or come in, somebody else may have them, or nobody: then they are staged again, by the
same forward on the same cache, so they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lopa_ray.protocol.plan import ScheduledRequest


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `BranchRunner.step` is to carry out again, and whom the next step's commits receive from."""

    again: dict[int, tuple[ScheduledRequest, ...]]
    """By rank."""
    sources: dict[int, int]
    """Request → rank, for `Scheduler.regroup`."""


def recover(pending: Sequence[ScheduledRequest], held: Sequence[Sequence[bool]]) -> Recovery:
    """`pending`: per commit, the work that staged it (see `Scheduler.pending`). `held`: per rank, which of
    them it has (see `BranchRunner.settle`).

    Where every worker stages its own (single phase), those who lack it do so, and nothing is sent. But nobody
    has stored prefixes any more: what began with one may only be had from a worker that has it.
    """
    size = len(held)
    again: dict[int, tuple[ScheduledRequest, ...]] = {}
    sources: dict[int, int] = {}
    for index, work in enumerate(pending):
        holders = [rank for rank in range(size) if held[rank][index]]
        if work.plan.stage_shared and not (work.stored_prefix and holders):
            for rank in sorted(set(range(size)).difference(holders)):
                again[rank] = (*again.get(rank, ()), replace(work, branch_indices=(), stored_prefix=()))
            continue
        source = holders[0] if holders else index % size
        if not holders:
            again[source] = (*again.get(source, ()), replace(work, stored_prefix=()))
        if size > 1:
            sources[work.request_id] = source
    return Recovery(again, sources)
