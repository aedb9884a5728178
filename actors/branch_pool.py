"""BranchPool: the branch workers of a group as Ray actors: placed, started, joined, called, ended."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup

from actors.branch_worker import BranchWorker, RunnerFactory, WorkerInfo, default_runner
from actors.elastic_group import Membership, abandon, open_store
from actors.node_weights import NodeWeights
from actors.placement import Seats, actor_options
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.device import DEVICES
from lopa_ray.errors import LopaError, TransferError, WorkerError, WorkerLostError
from lopa_ray.plan import StepPlan, StepReport, Work


def uses_store(config: Config) -> bool:
    """Whether K/V travels by object store rather than by collective."""
    shared = config.model.device != "cpu" and config.group.num_accelerators < 1
    return config.group.transfer == "object_store" or (config.group.transfer == "auto" and shared)


GONE = (RayActorError, OutOfMemoryError)
"""What Ray raises for an actor that is no more. The second one: its memory monitor ended it to spare the node."""

_NO_MEMORY = re.compile("out of memory|(allocate|enough) memory", re.IGNORECASE)
"""How torch says it, for CPUs and accelerators."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Something that several workers are asked to do."""

    answers: dict[Any, Any]
    """Worker → call, or a task that waits for several, in order of rank."""
    exports: dict[Any, Any] = field(default_factory=dict)
    """Worker → call that the others wait for: K/V that travels by object store."""


class BranchPool:
    """The workers of one epoch, by rank. Methods that wait run inside the master's event loop.

    A worker that dies, or does not answer in time, is no longer in the pool when the call that
    showed it raises WorkerLostError.
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
        self.workers: list[Any] = []
        """By rank."""
        self._seats = Seats(places, config.group)
        self.weights = NodeWeights(config)

    def __len__(self) -> int:
        return len(self.workers)

    # Who is in

    def hire(self) -> Any:
        """A new actor, not yet in the pool and without a model. Ray places it when there is room."""
        seat = self._seats.next()
        remote: Any = ray.remote(BranchWorker).options(**actor_options(self._config), **seat)
        worker = remote.remote(self._config, self._runner_factory, uses_store=self._by_store)
        self._seats.taken(worker)
        return worker

    def fire(self, worker: Any) -> None:
        """End a worker, wherever it is on its way, and free its place."""
        ray.kill(worker)
        self._seats.left(worker)

    async def start(self) -> WorkerInfo:
        """Hire as many workers as the configuration says, wait until they have loaded the model, join them.

        Raises what loading raised, or WorkerLostError if a worker died or took too long.
        """
        self.workers = [self.hire() for _ in range(self._config.group.num_workers)]
        loads = {worker: asyncio.create_task(self.weights.load(worker)) for worker in self.workers}
        try:
            infos: list[WorkerInfo] = await self._gather(
                Calls(loads), "load the model", self._config.group.start_timeout_s
            )
        except WorkerLostError as error:
            raise WorkerLostError(f"{error}; free in the cluster: {ray.available_resources()}") from None
        await self.join({}, [])
        return infos[0]

    async def admit(self, newcomers: Sequence[Any], owners: Mapping[int, int]) -> list[LopaError]:
        """Add workers that have loaded the model, as the highest ranks; `join` lets them take part.

        Before that they take over the slots of requests in flight (slot → request), within half the
        deadline of a step, since the group waits. Those who fail are ended; returns why.
        """
        if not newcomers:
            return []
        self.stands = False
        states = self.workers[0].export_slots.remote(owners)
        tasks = [asyncio.wrap_future(worker.adopt.remote(states).future()) for worker in newcomers]
        await asyncio.wait(tasks, timeout=self._config.group.step_timeout_s / 2)
        failures: list[LopaError] = []
        for worker, task in zip(newcomers, tasks, strict=True):
            error = (
                task.exception() if task.done() else TimeoutError("it did not take over the slots in time")
            )
            if error is None:
                self.workers.append(worker)
            else:
                self.fire(worker)
                failures.append(_cause("a new worker", error))
        return failures

    def dismiss(self, workers: Collection[Any]) -> None:
        """End some of the workers; those who are no longer in are passed over."""
        leaving = [worker for worker in self.workers if worker in workers]
        self.stands = self.stands and not leaving
        self.workers = [worker for worker in self.workers if worker not in leaving]
        for worker in leaving:
            self.fire(worker)

    async def join(self, owners: Mapping[int, int], pending: Sequence[Work]) -> list[tuple[bool, ...]]:
        """Enter the next epoch: a new collective group, whatever became of the one before.

        Returns per rank which pending commits' K/V it has; see `BranchRunner.settle`. Raises
        WorkerLostError if a worker is lost, TransferError if they cannot reach each other.
        """
        self.epoch += 1
        timeout = self._config.group.step_timeout_s
        collective, size = DEVICES[self._config.model.device].collective, len(self.workers)
        joins = {}
        for rank, worker in enumerate(self.workers):
            place = Membership(self.epoch, rank, size, self._store_address, collective, timeout / 2)
            joins[worker] = worker.join.remote(place, owners, pending)
        held: list[tuple[bool, ...]] = await self._gather(
            Calls(joins), "join its group", on_error=lambda: abandon(self._store, self.epoch)
        )
        self.stands = True
        return held

    # Calls

    def scatter(self, plans: Sequence[StepPlan]) -> Calls:
        """Send each worker its plan; `gather` waits for the answers."""
        exports: dict[Any, Any] = {}
        payloads = []
        if self._by_store:
            # Ray resolves these before a step runs; nobody waits for them here.
            for work in plans[0].work:
                if work.source is not None:
                    source = self.workers[work.source]
                    exports[source] = source.export.remote(work)
                    payloads.append(exports[source])
        steps = {w: w.step.remote(plan, *payloads) for w, plan in zip(self.workers, plans, strict=True)}
        return Calls(steps, exports)

    async def gather(self, calls: Calls) -> list[StepReport]:
        """All workers' reports. Raises WorkerLostError, or what a worker raised."""
        return await self._gather(calls, "answer a step")

    async def restage(self, again: Mapping[int, tuple[Work, ...]]) -> None:
        """Have ranks stage K/V again. Raises as `gather`."""
        calls = {
            self.workers[rank]: self.workers[rank].restage.remote(StepPlan(self.epoch, 0, work))
            for rank, work in again.items()
        }
        await self._gather(Calls(calls), "answer a step")

    async def check(self) -> None:
        """Raises WorkerLostError if a worker is lost. For times when there is no other call."""
        await self._gather(Calls({worker: worker.ping.remote() for worker in self.workers}), "answer")

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot."""
        return await self._gather(Calls({w: w.checksums.remote() for w in self.workers}), "answer")

    async def _gather(
        self,
        calls: Calls,
        what: str,
        timeout: float | None = None,
        on_error: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """All results, in order of rank. Waits for every call to settle before an error is raised, so that
        no worker is still busy with the step when the caller goes on; whoever does not settle is ended.
        `on_error` is called at the first error, to release those who wait for the one that failed."""
        timeout = timeout or self._config.group.step_timeout_s
        tasks = {
            worker: call if isinstance(call, asyncio.Task) else asyncio.wrap_future(call.future())
            for worker, call in calls.answers.items()
        }
        await _settle(tasks.values(), timeout, on_error)
        late = [worker for worker, task in tasks.items() if not task.done()]
        if late:
            # Whoever only waits for another's K/V is not to blame.
            blocking = [worker for worker, call in calls.exports.items() if not _is_done(call)] or late
            for worker in blocking:
                ray.kill(worker)
            await _settle([tasks[worker] for worker in late if worker not in blocking], timeout / 2)
        lost: dict[Any, str] = {}
        errors: list[LopaError] = []
        for worker, task in tasks.items():
            name = f"worker {self.workers.index(worker)}"
            error = task.exception() if task.done() else None
            if not task.done():
                lost[worker] = f"{name} did not {what} within {timeout:g} s"
            elif isinstance(error, GONE) and not isinstance(error, RayTaskError):
                lost[worker] = f"{name} died: {error}"
            elif error is not None:
                errors.append(_cause(name, error))
        self.stands = self.stands and not errors
        if lost:
            self.dismiss(lost)
            raise WorkerLostError("; ".join(lost.values()))
        if errors:
            # Where one worker failed by itself, the others only lost touch with it.
            raise next((error for error in errors if not isinstance(error, TransferError)), errors[0])
        return [task.result() for task in tasks.values()]

    def close(self) -> None:
        """End all workers, and free what they took."""
        self.dismiss(self.workers)


async def _settle(
    tasks: Collection[asyncio.Future[Any]], timeout: float, on_error: Callable[[], None] = lambda: None
) -> None:
    """Wait until all are done, or the time is over."""
    if tasks:
        began = time.monotonic()
        done, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        if pending and any(task.exception() for task in done):
            on_error()
            await asyncio.wait(pending, timeout=timeout - (time.monotonic() - began))


def _is_done(call: Any) -> bool:
    return bool(ray.wait([call], timeout=0, fetch_local=False)[0])


def _cause(who: str, error: BaseException) -> LopaError:
    """What a worker raised, without Ray's wrapping; whatever is not one of our errors becomes one."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, LopaError):
        return cause
    kind = TransferError if isinstance(cause, (*GONE, ObjectLostError)) else WorkerError
    said = f"{who} failed: {type(cause).__name__}: {cause}"
    if isinstance(cause, MemoryError) or _NO_MEMORY.search(said):
        said += (
            "; a step of this request needs more memory than there is: lower num_branches or block_size, or, for all "
            "requests, model.slots or model.max_model_len"
        )
    wrapped = kind(said)
    wrapped.__cause__ = error
    return wrapped
