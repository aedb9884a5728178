"""BranchPool: the branch workers of a group as Ray actors: placed, started, joined, called, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from actors.branch_worker import BranchWorker, RunnerFactory, WorkerInfo, default_runner
from actors.elastic_group import Rendezvous, abandon, open_store
from actors.node_weights import NodeWeights
from actors.placement import BundleAllocator, actor_options
from actors.rpc import PendingRPCs, RPCBatch, cause_of, is_death
from actors.worker_handle import WorkerHandle
from lopa_ray.config.config import Config
from lopa_ray.errors import LopaError, TransferError, WorkerLostError
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.kv_cache import SlotChecksum
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan, StepReport


def uses_store(config: Config) -> bool:
    """Whether K/V travels by object store rather than by collective."""
    shared = config.model.device != "cpu" and config.group.num_accelerators < 1
    return config.group.transfer == "object_store" or (config.group.transfer == "auto" and shared)


class BranchPool:
    """The workers of one epoch, by rank. Methods that wait run inside the master's event loop.

    A worker that dies, or does not answer in time, is no longer in the pool when the call that
    showed it raises WorkerLostError; with it go the other shards of its model.
    """

    def __init__(
        self,
        config: Config,
        runner_factory: RunnerFactory = default_runner,
        places: PlacementGroup | None = None,
    ) -> None:
        """Without workers; see `hire` and `admit`. `places`: reserved for as many as the configuration says."""
        self.epoch = -1
        self.stands = False
        """The collective group is as the last `join` made it, and nothing has failed since."""
        self._config = config
        self._runner_factory = runner_factory
        self._store, self._store_address = open_store()
        self._by_store = uses_store(config)
        self.workers: list[WorkerHandle] = []
        """By rank."""
        self._seats = BundleAllocator(places, config)
        self.weights = NodeWeights(config)
        """Of all nodes with workers."""

    def __len__(self) -> int:
        return len(self.workers)

    # Who is in

    def hire(self) -> WorkerHandle:
        """A new worker, not yet in the pool and without a model. Ray places it when there is room."""
        seat = self._seats.next()
        remote: Any = ray.remote(BranchWorker).options(**actor_options(self._config), **seat)
        worker = WorkerHandle(
            tuple(
                remote.remote(self._config, self._runner_factory, uses_store=self._by_store, shard=shard)
                for shard in range(self._config.group.tensor_parallel_size)
            )
        )
        self._seats.taken(worker)
        return worker

    def fire(self, worker: WorkerHandle) -> None:
        """End a worker, wherever it is on its way, and free its place."""
        worker.end()
        self._seats.left(worker)

    async def load(self, worker: WorkerHandle) -> WorkerInfo:
        """Have a worker load its model, every shard its part. Raises what `NodeWeights.load` raises."""
        info, *_ = await asyncio.gather(*map(self.weights.load, worker.shards))
        return info

    async def start(self) -> WorkerInfo:
        """Hire as many workers as the configuration says, wait until they have loaded the model, join them.

        Raises what loading raised, or WorkerLostError if a worker died or took too long.
        """
        self.workers = [self.hire() for _ in range(self._config.group.num_workers)]
        loads = {worker: (asyncio.create_task(self.load(worker)),) for worker in self.workers}
        try:
            infos = await self._gather(RPCBatch(loads), "load the model", self._config.group.start_timeout_s)
        except WorkerLostError as error:
            raise WorkerLostError(f"{error}; free in the cluster: {ray.available_resources()}") from None
        await self.join({}, [])
        info: WorkerInfo = infos[0][0]
        return info

    async def admit(self, newcomers: Sequence[WorkerHandle], owners: Mapping[int, int]) -> list[LopaError]:
        """Add workers that have loaded the model, as the highest ranks; `join` lets them take part.

        Before that they take over the slots of requests in flight (slot → request), within half the
        deadline of a step, since the group waits. Those who fail are ended; returns why.
        """
        if not newcomers:
            return []
        self.stands = False
        states = self.workers[0].ask("export_slots", owners)
        waiting = PendingRPCs(
            RPCBatch(
                {
                    worker: tuple(
                        shard.adopt.remote(state) for shard, state in zip(worker.shards, states, strict=True)
                    )
                    for worker in newcomers
                }
            )
        )
        await waiting.settle(self._config.group.step_timeout_s / 2)
        late = TimeoutError("it did not take over the slots in time")
        failures: list[LopaError] = []
        for worker, _, errors in waiting.results():
            if worker in waiting.late():
                errors.append(late)
            if errors:
                self.fire(worker)
                failures.append(cause_of("a new worker", errors[0]))
            else:
                self.workers.append(worker)
        return failures

    def dismiss(self, workers: Collection[WorkerHandle]) -> None:
        """End some of the workers; those who are no longer in are passed over."""
        leaving = [worker for worker in self.workers if worker in workers]
        self.stands = self.stands and not leaving
        self.workers = [worker for worker in self.workers if worker not in leaving]
        for worker in leaving:
            self.fire(worker)

    async def join(
        self, owners: Mapping[int, int], pending: Sequence[ScheduledRequest]
    ) -> list[tuple[bool, ...]]:
        """Enter the next epoch: a new collective group, whatever became of the one before.

        Returns per rank which pending commits' K/V it has; see `BranchRunner.reconcile`. Raises
        WorkerLostError if a worker is lost, TransferError if they cannot reach each other.
        """
        self.epoch += 1
        joins = {}
        for rank, worker in enumerate(self.workers):
            joins[worker] = tuple(
                shard.join.remote(
                    self._membership(f"kv{index}", rank, len(self.workers)),
                    self._membership(f"shards{rank}", index, len(worker.shards)),
                    owners,
                    pending,
                )
                for index, shard in enumerate(worker.shards)
            )
        held: list[tuple[tuple[bool, ...], ...]] = await self._gather(
            RPCBatch(joins), "join its group", on_error=lambda: abandon(self._store, self.epoch)
        )
        torn = [worker for worker, each in zip(self.workers, held, strict=True) if len(set(each)) > 1]
        if torn:
            # Its shards lost touch right when they committed: the others have the K/V whole, or stage it again.
            self.dismiss(torn)
            raise WorkerLostError(f"{len(torn)} workers had the K/V of a commit on some of their shards only")
        self.stands = True
        return [each[0] for each in held]

    def _membership(self, group: str, rank: int, size: int) -> Rendezvous:
        collective = DEVICES[self._config.model.device].collective_backend
        timeout = self._config.group.step_timeout_s / 2
        return Rendezvous(self.epoch, rank, size, self._store_address, collective, timeout, group)

    # Calls

    def scatter(self, plans: Sequence[StepPlan]) -> RPCBatch:
        """Send each worker its plan; `gather` waits for the answers."""
        exports: dict[WorkerHandle, tuple[Any, ...]] = {}
        payloads = []
        if self._by_store:
            # Ray resolves these before a step runs; nobody waits for them here.
            for work in plans[0].requests:
                if work.source is not None:
                    source = self.workers[work.source]
                    exports[source] = source.ask("export", work)
                    payloads.append(exports[source])
        steps = {
            worker: tuple(
                shard.step.remote(plan, *(each[index] for each in payloads))
                for index, shard in enumerate(worker.shards)
            )
            for worker, plan in zip(self.workers, plans, strict=True)
        }
        return RPCBatch(steps, exports)

    async def gather(self, calls: RPCBatch) -> list[StepReport]:
        """All workers' reports. Raises WorkerLostError, or what a worker raised."""
        return [report for report, *_ in await self._gather(calls, "answer a step")]

    async def restage(self, again: Mapping[int, tuple[ScheduledRequest, ...]]) -> None:
        """Have ranks stage K/V again. Raises as `gather`."""
        calls = {
            self.workers[rank]: self.workers[rank].ask("restage", StepPlan(self.epoch, 0, work))
            for rank, work in again.items()
        }
        await self._gather(RPCBatch(calls), "answer a step")

    async def check(self) -> None:
        """Raises WorkerLostError if a worker is lost. For times when there is no other call."""
        await self._gather(RPCBatch({worker: worker.ask("ping") for worker in self.workers}), "answer")

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot; with shards, those of the first shard before those of the next."""
        answers = await self._gather(RPCBatch({w: w.ask("checksums") for w in self.workers}), "answer")
        return [[slot for shard in each for slot in shard] for each in answers]

    async def _gather(
        self,
        calls: RPCBatch,
        what: str,
        timeout: float | None = None,
        on_error: Callable[[], None] = lambda: None,
    ) -> list[tuple[Any, ...]]:
        """All results, in order of rank, each by shard. Waits for every call to settle before an error is raised,
        so that no worker is still busy with the step when the caller goes on; whoever does not settle is ended.
        `on_error` is called after errors, to release those who wait for the one that failed."""
        timeout = timeout or self._config.group.step_timeout_s
        waiting = PendingRPCs(calls)
        await waiting.settle(timeout, on_error)
        hung: Collection[WorkerHandle] = waiting.late()
        if hung:
            # Whoever only waits for another's K/V is not to blame.
            hung = calls.blocking() or hung
            for worker in hung:
                worker.end()
            await waiting.settle(timeout / 2, without=hung)
            hung = {*hung, *waiting.late()}
        lost: dict[WorkerHandle, str] = {}
        errors: list[LopaError] = []
        answers = []
        for worker, answer, raised in waiting.results():
            name = f"worker {self.workers.index(worker)}"
            death = next((error for error in raised if is_death(error)), None)
            if worker in hung:
                lost[worker] = f"{name} did not {what} within {timeout:g} s"
            elif death is not None:
                lost[worker] = f"{name} died: {death}"
            else:
                errors += [cause_of(name, error) for error in raised]
                answers.append(answer)
        self.stands = self.stands and not errors
        if lost:
            self.dismiss(lost)
            raise WorkerLostError("; ".join(lost.values()))
        if errors:
            # Where one worker failed by itself, the others only lost touch with it.
            raise next((error for error in errors if not isinstance(error, TransferError)), errors[0])
        return answers

    def close(self) -> None:
        """End all workers, and free what they took."""
        self.dismiss(self.workers)
