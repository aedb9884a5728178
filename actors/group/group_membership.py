"""GroupMembership: which workers are in a group, and how that changes at a step boundary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray

from actors.calls.actor_errors import cause_of, is_death
from actors.calls.worker_handle import WorkerHandle, WorkerInfo
from actors.group.branch_pool import BranchPool
from actors.group.pending_workers import PendingWorkers
from actors.group.start_phases import StartPhases
from actors.workers.node_weights import NodeWeights
from actors.workers.worker_factory import WorkerFactory
from lopa_ray.errors import LopaError, ProtocolError, TransferError, WorkerLostError
from lopa_ray.model.checkpoint.weight_source import WeightSource
from lopa_ray.scheduling.recovery import change_epoch
from lopa_ray.scheduling.scheduler import Scheduler

logger = logging.getLogger("lopa.group")


class GroupMembership:
    """The workers of a group (`pool`), the workers that are to join it (`pending`), and the target number of both."""

    def __init__(self, factory: WorkerFactory, on_change: Callable[[], None]) -> None:
        """`on_change` is called when `change_due` may have become true."""
        group = factory.config.group
        self.pool = BranchPool(factory)
        self.pending = PendingWorkers(factory, group, on_change)
        self.target = group.num_workers
        self._factory = factory
        self._on_change = on_change
        self._start_timeout_s = group.start_timeout_s
        self._staged: tuple[WeightSource, NodeWeights] | None = None
        self._level = 0  # of `sleep`; 0: awake

    async def start(self, scheduler: Scheduler, phases: StartPhases) -> WorkerInfo:
        """Create the workers, and enter the first epoch with workers that have loaded the model; the others join as
        newcomers do. Raises as `PendingWorkers.until_start`, WorkerLostError after `group.start_timeout_s`, and
        TransferError if the workers do not reach each other."""
        self.pending.set_target(self.target)
        if self.target * self._factory.config.group.tensor_parallel_size > 1:
            self._factory.store.open()
        while not (self.pool.intact and len(self.pool)):
            if not len(self.pool):
                await self._until_ready(phases)
            try:
                await self.change(scheduler)
            except WorkerLostError as error:
                logger.warning(f"workers were lost while the group starts: {error}")
        phases.end("join")
        return self.pending.info

    async def _until_ready(self, phases: StartPhases) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self.pending.until_start(phases)
        except TimeoutError:
            if not self.pending.ready:
                raise WorkerLostError(
                    f"no worker has loaded the model within {self._start_timeout_s:g} s; free in the cluster: "
                    f"{ray.available_resources()}; a download or a slow disk may take longer than "
                    "group.start_timeout_s: raise it"
                ) from None

    def resize(self, num_workers: int) -> None:
        """Have that many workers: at the next step if they are fewer, and as they become ready if they are more."""
        self.target = num_workers
        self._factory.weights.shared |= num_workers > 1
        self.pending.reset_failures()
        self.pending.set_target(self.target - len(self.pool))
        self._on_change()

    @property
    def change_due(self) -> bool:
        """The next step needs `change` first."""
        return not self.pool.intact or self.pending.ready or len(self.pool) > self.target

    async def change(self, scheduler: Scheduler) -> None:
        """Enter the next epoch with the survivors and the newcomers, without the workers that leave. Raises
        WorkerLostError if a worker is lost meanwhile, and TransferError if the workers do not reach each other or one
        fails: the requests in the coming step are not at fault. Unless no worker is left it may be called again."""
        pool, pending = self.pool, self.pending
        pool.remove_workers(pool.workers[self.target :])
        newcomers = pending.take_ready()
        try:
            for failure in await pool.add_workers(newcomers, scheduler.request_by_slot):
                pending.record_failure(failure)
            await change_epoch(scheduler, pool)
        except LopaError as error:
            if newcomers:
                pending.record_failure(error)
            if isinstance(error, WorkerLostError):
                raise
            pool.remove_workers(newcomers)  # a newcomer may be the worker that fails or is not reached
            if isinstance(error, TransferError):
                raise
            raise TransferError(f"the workers did not enter a new epoch: {error}") from error
        else:
            if any(worker in pool.workers for worker in newcomers):
                pending.record_joined()
        finally:
            pending.set_target(self.target - len(pool))

    # Weights

    async def stage(self, source: WeightSource) -> None:
        """Have all workers stage weights, while they compute steps. Raises CheckpointError and what else one of them
        raises; a worker that is lost is left to the next step."""
        staged = self._staged = source, self._factory.weights.anew(source)
        shards = [shard for worker in self.pool.workers for shard in worker.shards]
        calls = [asyncio.ensure_future(staged[1].stage(shard)) for shard in shards]
        done, late = await asyncio.wait(calls, timeout=self._start_timeout_s)
        errors = [error for call in done if (error := call.exception()) is not None]
        errors += [TimeoutError(f"no answer within {self._start_timeout_s:g} s")] * len(late)
        for error in errors:
            if not is_death(error):
                raise cause_of("a worker", "load the model", error)
        if len(errors) == len(shards):
            raise WorkerLostError("all workers were lost while they staged weights")
        if self._staged is not staged:
            raise ProtocolError("the update was given up")

    def discard(self) -> None:
        """Drop what is staged."""
        for worker in self.pool.workers if self._staged is not None else ():
            worker.call("discard")
        self._staged = None

    async def commit(self) -> None:
        """Between steps: all workers have the staged weights from now on. Those that fail are replaced, as those that
        are still loading others. Raises WorkerLostError if none is left."""
        assert self._staged is not None
        source, weights = self._staged
        self._staged = None
        self._factory.use(source, weights)
        self.pending.set_target(0)
        await self._change(lambda worker: worker.call("commit_weights", source.version))

    async def sleep(self, level: int) -> None:
        """Between steps; see `LocalEngine.sleep`. Raises WorkerLostError if no worker is left."""
        self._level = max(level, self._level)
        if level == 2:
            self._factory.weights = self._factory.weights.anew()
        await self.pool.change(lambda worker: worker.call("sleep", level))

    async def wake_up(self) -> None:
        """Between steps. Raises WorkerLostError if no worker is left."""
        level, self._level = self._level, 0
        if level == 2:
            await self._change(lambda worker: (asyncio.ensure_future(self._factory.load_model(worker)),))
        else:
            await self._change(lambda worker: worker.call("call_runner", "wake_up"))

    async def _change(self, call: Callable[[WorkerHandle], tuple[Any, ...]]) -> None:
        try:
            await self.pool.change(call)
        finally:
            self.pending.set_target(self.target - len(self.pool))

    def close(self) -> None:
        self.pending.set_target(0)
        self.pool.close()
