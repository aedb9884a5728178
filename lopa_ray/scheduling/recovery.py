"""What a group does after a change of membership so that its next step finds all K/V. No I/O.

A commit rides on the step after the one that staged its K/V, and names the worker that has them. When
workers are lost or join, another one may have them, or none: then they are staged again, by the
same forward on the same cache, so they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lopa_ray.protocol.plan import ScheduledRequest


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `BranchRunner.execute` is to carry out again, and which workers the next step's commits receive from."""

    restage: dict[int, tuple[ScheduledRequest, ...]]
    """By rank."""
    source_ranks: dict[int, int]
    """Request → rank, for `Scheduler.enter_epoch`."""


def recover(pending_commits: Sequence[ScheduledRequest], held: Sequence[Sequence[bool]]) -> Recovery:
    """`pending_commits`: per commit, the scheduled request that staged it (see `Scheduler.pending_commits`). `held`:
    per rank, which of them it has (see `BranchRunner.reconcile`).

    Where every worker stages its own (single phase), those that lack it do so, and nothing is sent. But no worker
    has stored prefixes any more: what began with one can only be sent by a worker that has it.
    """
    size = len(held)
    restage: dict[int, tuple[ScheduledRequest, ...]] = {}
    source_ranks: dict[int, int] = {}
    for index, scheduled in enumerate(pending_commits):
        holders = [rank for rank in range(size) if held[rank][index]]
        if scheduled.plan.stage_shared and not (scheduled.stored_prefix and holders):
            for rank in sorted(set(range(size)).difference(holders)):
                restage[rank] = (
                    *restage.get(rank, ()),
                    replace(scheduled, branch_indices=(), stored_prefix=()),
                )
            continue
        source = holders[0] if holders else index % size
        if not holders:
            restage[source] = (*restage.get(source, ()), replace(scheduled, stored_prefix=()))
        if size > 1:
            source_ranks[scheduled.request_id] = source
    return Recovery(restage, source_ranks)
