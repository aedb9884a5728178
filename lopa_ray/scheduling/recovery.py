"""Recovery: after a change of membership it makes the staged K/V available for the next step. A commit names the worker
that has its K/V. After workers are lost or join, another worker may have them. If none has them, they are staged again
by the same forward on the same cache, so they are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from lopa_ray.protocol.plan import ScheduledRequest
from lopa_ray.scheduling.scheduler import Scheduler

Restage = dict[int, tuple[ScheduledRequest, ...]]
"""Rank → scheduled requests that the worker's `BranchRunner.execute` has to carry out again."""


def recover(
    pending_commits: Sequence[ScheduledRequest], held: Sequence[Sequence[bool]]
) -> tuple[Restage, dict[int, int]]:
    """Plan the recovery of the commits of `Scheduler.pending_commits`. `held`: per rank which of them it has. Returns
    what to stage again, and the source ranks of `Scheduler.enter_epoch`. With single-phase commits workers that lack
    their own K/V stage them again, and nothing is sent. A request that began with a stored prefix is an exception,
    because all stored prefixes were dropped: its K/V are sent."""
    size = len(held)
    restage: Restage = {}
    source_ranks: dict[int, int] = {}
    for index, scheduled in enumerate(pending_commits):
        holders = [rank for rank in range(size) if held[rank][index]]
        if scheduled.plan.stage_shared and not (scheduled.stored_prefix and holders):
            staging = replace(scheduled, branch_indices=(), stored_prefix=())
            for rank in sorted(set(range(size)).difference(holders)):
                restage[rank] = (*restage.get(rank, ()), staging)
            continue
        source = holders[0] if holders else index % size
        if not holders:
            restage[source] = (*restage.get(source, ()), replace(scheduled, stored_prefix=()))
        if size > 1:
            source_ranks[scheduled.request_id] = source
    return restage, source_ranks


class EpochWorkers(Protocol):
    """The workers of a group, by rank, wherever they run."""

    epoch: int

    async def join_epoch(
        self, request_by_slot: Mapping[int, int], pending: Sequence[ScheduledRequest]
    ) -> list[tuple[bool, ...]]:
        """Enter the next epoch; returns per rank which pending commits' K/V it has (`BranchRunner.reconcile`)."""

    async def restage(self, lost: Restage) -> None:
        """Have ranks stage again what was lost (rank → requests)."""


async def change_epoch(scheduler: Scheduler, workers: EpochWorkers) -> tuple[Restage, dict[int, int]]:
    """Enter the next epoch with these workers; returns what `recover` does. After an error the scheduler is in its old
    epoch, and a further call may follow. Raises as the workers."""
    uncommitted = scheduler.pending_commits()
    held = await workers.join_epoch(scheduler.request_by_slot, uncommitted)
    restage, source_ranks = recover(uncommitted, held)
    await workers.restage(restage)
    scheduler.enter_epoch(workers.epoch, source_ranks)
    return restage, source_ranks
