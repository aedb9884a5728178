"""BranchPool: the branch workers of a group as Ray actors: started, joined, called, removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

from actors.calls.actor_errors import IN_A_STEP, cause_of, is_death
from actors.calls.rpc import RPCBatch, death_of_worker
from actors.calls.worker_handle import WorkerHandle
from actors.steps.step_transport import StepTransport
from actors.workers.worker_factory import WorkerFactory
from lopa_ray.errors import LopaError, TransferError, WorkerLostError
from lopa_ray.protocol.forward_costs import ForwardCosts
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import StepReport

logger = logging.getLogger("lopa.group")


class BranchPool:
    """The workers of one epoch, by rank. A call removes a dead or hung worker, then raises WorkerLostError."""

    def __init__(self, factory: WorkerFactory) -> None:
        self.epoch = -1
        self.intact = False  # the collective group is as `join_epoch` made it, and nothing has failed since
        self.lost_workers = 0
        self._factory = factory
        self._group = factory.config.group
        self._transport = StepTransport()
        self.workers: list[WorkerHandle] = []

    def __len__(self) -> int:
        return len(self.workers)

    # Workers

    async def add_workers(
        self, newcomers: Sequence[WorkerHandle], request_by_slot: Mapping[int, int]
    ) -> list[LopaError]:
        """Add workers that have loaded the model, as the highest ranks; `join_epoch` lets them take part. Before that
        they take over the slots of requests in flight (slot → request). Those that fail are killed; returns why."""
        if not newcomers:
            return []
        self.intact = False
        if self.workers:
            states = self.workers[0].call("call_runner", "export_slots", request_by_slot)
            pairs = {worker: zip(worker.shards, states, strict=True) for worker in newcomers}
            calls = {
                worker: tuple(shard.call_runner.remote("import_slots", state) for shard, state in of_worker)
                for worker, of_worker in pairs.items()
            }
            timeout_s = self._group.step_timeout_s / 2
        else:
            calls = {worker: worker.call("ping") for worker in newcomers}
            timeout_s = self._group.loading_hung_after_s
        pending = RPCBatch(calls)
        await pending.wait(timeout_s)
        failures: list[LopaError] = []
        for worker, _, errors in pending.results():
            if worker in pending.unanswered():
                errors.append(TimeoutError("it did not answer in time"))
            if errors:
                self._factory.kill(worker)
                failures.append(cause_of("a new worker", "take over slots", errors[0]))
            else:
                self.workers.append(worker)
        return failures

    def remove_workers(self, workers: Collection[WorkerHandle]) -> None:
        """Kill workers and remove them. Workers that have left the pool already are ignored."""
        leaving = [worker for worker in self.workers if worker in workers]
        self.intact = self.intact and not leaving
        self.workers = [worker for worker in self.workers if worker not in leaving]
        for worker in leaving:
            self._factory.kill(worker)
            self._transport.forget(worker)

    async def join_epoch(
        self, request_by_slot: Mapping[int, int], pending: Sequence[ScheduledRequest]
    ) -> list[tuple[bool, ...]]:
        """Enter the next epoch, with a new collective group; see `BranchRunner.reconcile`. Raises WorkerLostError if a
        worker is lost, TransferError if they cannot reach each other."""
        self.epoch += 1
        joins: dict[WorkerHandle, tuple[Any, ...]] = {}
        store, size, timeout_s = self._factory.store, len(self.workers), self._group.step_timeout_s / 2
        for rank, worker in enumerate(self.workers):
            for index, shard in enumerate(worker.shards):
                peers = await store.rendezvous(f"kv{index}", rank, size, self.epoch, timeout_s)
                shards = len(worker.shards)
                others = await store.rendezvous(f"shards{rank}", index, shards, self.epoch, timeout_s)
                steps = await self._transport.address(shard)
                join = shard.join_epoch.remote(peers, others, steps, request_by_slot, pending)
                joins[worker] = (*joins.get(worker, ()), join)
        held: list[tuple[tuple[bool, ...], ...]] = await self._gather(RPCBatch(joins), "join its group")
        torn = [worker for worker, by_shard in zip(self.workers, held, strict=True) if len(set(by_shard)) > 1]
        if torn:
            # The shards of these workers lost their connection during the commit. Other workers have all of the K/V, or
            # stage it again.
            self.remove_workers(torn)
            raise WorkerLostError(f"{len(torn)} workers had the K/V of a commit on some of their shards only")
        self.intact = True
        return [by_shard[0] for by_shard in held]

    # Calls

    def scatter(self, plans: Sequence[StepPlan]) -> RPCBatch:
        return self._transport.scatter(self.workers, plans)

    async def gather(self, batch: RPCBatch) -> list[StepReport]:
        """Wait for the reports of all workers and return them. Raises WorkerLostError, or what a worker raised."""
        return [report for report, *_ in await self._gather(batch, IN_A_STEP)]

    async def drop(self, batch: RPCBatch) -> None:
        """Wait until no worker is busy any more with a step whose reports are not wanted. Raises as `gather`."""
        await self._gather(batch.of(self.workers), IN_A_STEP)

    async def restage(self, lost: Mapping[int, tuple[ScheduledRequest, ...]]) -> None:
        """See `EpochWorkers.restage`; a request at a time on each rank. All of them in one forward could be larger than
        any step: while requests take turns for lack of memory, their pending commits add up."""
        for requests in zip_longest(*lost.values()):
            calls = {
                self.workers[rank]: self.workers[rank].call("execute", StepPlan(self.epoch, 0, (request,)))
                for rank, request in zip(lost, requests, strict=True)
                if request is not None
            }
            await self._gather(RPCBatch(calls), IN_A_STEP)

    async def check_alive(self) -> None:
        """Raises WorkerLostError if a worker is lost. For an idle group, which has no step that would show it."""
        await self._gather(RPCBatch({worker: worker.call("ping") for worker in self.workers}), "answer")

    async def change(self, call: Callable[[WorkerHandle], tuple[Any, ...]]) -> None:
        """Call all workers between steps, and remove those that fail; the others enter another epoch then. Raises
        WorkerLostError if none is left."""
        pending = RPCBatch({worker: call(worker) for worker in self.workers})
        await pending.wait(self._group.start_timeout_s)
        failed = {worker: errors[0] for worker, _, errors in pending.results() if errors}
        failed |= dict.fromkeys(pending.unanswered(), TimeoutError("it did not answer in time"))
        self.intact = False
        self.lost_workers += len(failed)
        self.remove_workers(failed)
        reasons = "; ".join(str(cause_of("a worker", "load the model", error)) for error in failed.values())
        if not self.workers:
            raise WorkerLostError(f"no worker is left: {reasons}")
        if failed:
            logger.warning(f"workers are replaced: {reasons}")

    async def forward_costs(self) -> ForwardCosts:
        """The costs of a forward of the first worker; the others wait, and are taken to be alike."""
        first = self.workers[0]
        [(costs, *_)] = await self._gather(RPCBatch({first: first.call("forward_costs")}), "time forwards")
        return cast(ForwardCosts, costs)

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Checksums per worker, per slot; the slots of the first shard come before the slots of the next."""
        calls = {worker: worker.call("call_runner", "checksums") for worker in self.workers}
        answers = await self._gather(RPCBatch(calls), "answer")
        return [[slot for shard in by_shard for slot in shard] for by_shard in answers]

    async def _gather(self, pending: RPCBatch, what: str) -> list[tuple[Any, ...]]:
        """All results, in order of rank, each by shard. Every call settles before an error is raised, so that no worker
        is still busy then. After an error the epoch is given up, which releases workers that wait for a failed peer."""
        timeout = self._group.step_timeout_s
        await pending.wait(timeout, on_error=lambda: self._factory.store.abandon(self.epoch))
        hung: Collection[WorkerHandle] = pending.unanswered()
        if hung:
            for worker in hung:
                worker.kill()
            await pending.wait(timeout / 2, without=hung)
            hung = {*hung, *pending.unanswered()}
        lost: dict[WorkerHandle, str] = {}
        errors: list[LopaError] = []
        replies = []
        for worker, reply, raised in pending.results():
            name = f"worker {self.workers.index(worker)}"
            death = next((error for error in raised if is_death(error)), None)
            if worker in hung:
                lost[worker] = f"{name} did not {what} within {timeout:g} s"
            elif death is not None:
                lost[worker] = f"{name} died: {await death_of_worker(worker, death)}"
            else:
                errors += [cause_of(name, what, error) for error in raised]
                replies.append(reply)
        self.intact = self.intact and not errors
        self.lost_workers += len(lost)
        if lost:
            self.remove_workers(lost)
            raise WorkerLostError("; ".join(lost.values()))
        if errors:
            # A TransferError may follow from the error of another worker, so other errors come first.
            raise next((error for error in errors if not isinstance(error, TransferError)), errors[0])
        return replies

    def close(self) -> None:
        self.remove_workers(self.workers)
        self._transport.close()
