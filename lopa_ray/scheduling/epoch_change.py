"""change_epoch: a scheduler and its workers enter the next epoch, with the commits that are pending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lopa_ray.protocol.plan import ScheduledRequest
from lopa_ray.scheduling.recovery import Recovery, recover
from lopa_ray.scheduling.scheduler import Scheduler


class EpochWorkers(Protocol):
    """The workers of a group, by rank, wherever they run."""

    epoch: int
    """The epoch that they have joined last."""

    async def join_epoch(
        self, request_by_slot: Mapping[int, int], pending: Sequence[ScheduledRequest]
    ) -> list[tuple[bool, ...]]:
        """Enter the next epoch; returns per rank which pending commits' K/V it has (`BranchRunner.reconcile`)."""

    async def restage(self, lost: Mapping[int, tuple[ScheduledRequest, ...]]) -> None:
        """Have ranks stage again what was lost (rank → requests)."""


async def change_epoch(scheduler: Scheduler, workers: EpochWorkers) -> Recovery:
    """Enter the next epoch with these workers; returns what that took. Raises what the workers raise. After an error
    the scheduler is in its old epoch, and a further call may follow."""
    uncommitted = scheduler.pending_commits()
    recovery = recover(uncommitted, await workers.join_epoch(scheduler.request_by_slot, uncommitted))
    await workers.restage(recovery.restage)
    scheduler.enter_epoch(workers.epoch, recovery.source_ranks)
    return recovery
