"""Crew: who works in a group, and how it changes its members at a step boundary."""

from __future__ import annotations

from collections.abc import Callable

from ray.util.placement_group import PlacementGroup

from actors.branch_pool import BranchPool
from actors.branch_worker import RunnerFactory, WorkerInfo
from actors.pending_workers import PendingWorkers
from lopa_ray.config.config import Config
from lopa_ray.errors import LopaError, TransferError, WorkerLostError
from lopa_ray.scheduling.recovery import recover
from lopa_ray.scheduling.scheduler import Scheduler


class GroupMembership:
    """The workers of a group (`pool`), those to come, and how many there should be."""

    def __init__(
        self,
        config: Config,
        runner_factory: RunnerFactory,
        places: PlacementGroup | None,
        on_change: Callable[[], None],
    ) -> None:
        """`places`: see `BranchPool`. `on_change` is called when `due` may have become true."""
        self.pool = BranchPool(config, runner_factory, places)
        self.target = config.group.num_workers
        """How many there should be."""
        self._on_change = on_change
        pool = self.pool
        self._recruits = PendingWorkers(
            pool.hire, pool.fire, pool.load, config.group.start_timeout_s, on_change
        )

    async def start(self) -> WorkerInfo:
        """Raises what `BranchPool.start` raises."""
        return await self.pool.start()

    @property
    def coming(self) -> int:
        """Workers that wait for a place, load their model or wait for the next step."""
        return len(self._recruits)

    @property
    def problem(self) -> LopaError | None:
        """Why the last attempt to get a worker failed; None once one came in after it."""
        return self._recruits.problem

    def resize(self, num_workers: int) -> None:
        """Have that many workers: at the next step if they are fewer, and as they come if they are more."""
        self.target = num_workers
        self.pool.weights.shared |= num_workers > 1
        self._recruits.start_over()
        self._recruits.want(self.target - len(self.pool))
        self._on_change()

    @property
    def due(self) -> bool:
        """The next step needs `regroup` first."""
        return not self.pool.stands or self._recruits.ready or len(self.pool) > self.target

    async def regroup(self, scheduler: Scheduler) -> None:
        """Enter an epoch with whoever is there: survivors and newcomers, without those who leave.

        Raises WorkerLostError if somebody is lost meanwhile, TransferError if the workers do not
        reach each other, and what staging anew raises. Unless nobody is left it may be called again.
        """
        pool, recruits = self.pool, self._recruits
        pool.dismiss(pool.workers[self.target :])
        newcomers = recruits.take()
        owners, pending = scheduler.request_by_slot, scheduler.pending_commits()
        try:
            for failure in await pool.admit(newcomers, owners):
                recruits.failed(failure)
            held = await pool.join(owners, pending)
            recovery = recover(pending, held)
            await pool.restage(recovery.restage)
        except (WorkerLostError, TransferError) as error:
            if newcomers:
                recruits.failed(error)
            if isinstance(error, TransferError):
                pool.dismiss(newcomers)  # it may be them whom the others do not reach
            raise
        else:
            scheduler.enter_epoch(pool.epoch, recovery.source_ranks)
            if any(worker in pool.workers for worker in newcomers):
                recruits.came_in()
        finally:
            recruits.want(self.target - len(pool))

    def close(self) -> None:
        """End all workers."""
        self._recruits.close()
        self.pool.close()
