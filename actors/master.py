"""Master: the step loop of one decode group.

A plain class with async methods; `RayEngine` and the serving group wrap it in an actor. Clients
open a stream of events; their requests join the loop at the next step. Each step is one scatter
and one gather over the branch workers, and one message per client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.branch_pool import BranchPool
from actors.branch_worker import RunnerFactory, WorkerInfo, default_runner
from lopa_ray.budget import BranchBudget
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.engine import EngineEvent
from lopa_ray.errors import LopaError, ProtocolError, WorkerLostError
from lopa_ray.plan import StepTiming
from lopa_ray.scheduler import Event, Failure, Scheduler
from lopa_ray.session import DecodeSession

MAX_STREAMS = 1000
"""Calls that a master serves at once."""


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What one step meant for a client's requests. `timing` is None for events between steps."""

    events: tuple[EngineEvent, ...]
    timing: StepTiming | None


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """How a group is doing."""

    workers: int
    slots: int
    in_flight: int
    waiting: int
    steps: int
    stalled_s: float
    """Seconds since the step under way began; 0 while idle."""
    broken: LopaError | None


@dataclass(slots=True)
class _Client:
    """An open stream, and the requests whose events go there, by the client's own numbers."""

    queue: asyncio.Queue[StepEvents] = field(default_factory=asyncio.Queue)
    requests: dict[int, int] = field(default_factory=dict)


class Master:
    """Owns the scheduler and the workers. All state changes happen on its event loop."""

    def __init__(self, config: Config, runner_factory: RunnerFactory = default_runner) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `start`."""
        self._config = config
        self._runner_factory = runner_factory
        self._scheduler = Scheduler(config.model.slots, BranchBudget(config.group.shared_branches))
        self._clients: dict[str, _Client] = {}
        self._owners: dict[int, tuple[_Client, int]] = {}
        """Scheduler's id of each unfinished request → its client, and the client's number for it."""
        self._arrived = asyncio.Event()
        self._broken: LopaError | None = None
        self._loop: asyncio.Task[None] | None = None
        self._steps = 0
        self._step_began: float | None = None

    async def start(self) -> WorkerInfo:
        """Create the workers and wait until they are ready.

        Raises CapacityError, CheckpointError, SettingsError, WorkerLostError.
        """
        self._pool = BranchPool(self._config, self._runner_factory)
        info = await self._pool.start()
        self._loop = asyncio.create_task(self._run())
        return info

    # Clients

    async def stream(
        self, client: str, sessions: Mapping[int, DecodeSession], *, stay: bool = False
    ) -> AsyncIterator[StepEvents]:
        """The events of a client's requests: those given here, and with `stay` those that it submits later.

        With `stay` the first item is empty and says that `submit` may be called; without, the stream
        ends when all requests have. Cancelling the call frees their slots at the next step. Raises
        ProtocolError if the client has a stream already.
        """
        if client in self._clients:
            raise ProtocolError(f"client {client!r} has an open stream; give each one a name of its own")
        opened = self._clients[client] = _Client()
        if stay:
            opened.queue.put_nowait(StepEvents((), None))
        try:
            await self.submit(client, sessions)
            while stay or opened.requests or not opened.queue.empty():
                yield await opened.queue.get()
        finally:
            del self._clients[client]
            for request in opened.requests.values():
                del self._owners[request]
                self._scheduler.cancel(request)

    async def submit(self, client: str, sessions: Mapping[int, DecodeSession]) -> None:
        """Queue requests under the client's own numbers; events go to its stream.

        Raises ProtocolError without an open stream, or for a session that is finished already.
        """
        opened = self._clients.get(client)
        if opened is None:
            raise ProtocolError(f"client {client!r} has no open stream; open one first")
        if self._broken is not None:
            failures = tuple((number, self._broken) for number in sessions)
            opened.queue.put_nowait(StepEvents(failures, None))
            return
        for number, session in sessions.items():
            request = self._scheduler.submit(session)
            opened.requests[number] = request
            self._owners[request] = opened, number
        self._arrived.set()

    async def cancel(self, client: str, numbers: list[int]) -> None:
        """Free the requests' slots at the next step. Those that have ended are passed over."""
        opened = self._clients.get(client)
        for number in numbers:
            request = opened.requests.pop(number, None) if opened is not None else None
            if request is not None:
                del self._owners[request]
                self._scheduler.cancel(request)
        if opened is not None:
            opened.queue.put_nowait(StepEvents((), None))  # a stream that waits for nothing more may end

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot. Raises ProtocolError while requests are in flight."""
        if self._scheduler.busy:
            raise ProtocolError("checksums are compared while the group is idle; requests are in flight")
        return await self._pool.checksums()

    async def status(self) -> MasterStatus:
        """How the group is doing, right now."""
        began = self._step_began
        return MasterStatus(
            workers=len(self._pool),
            slots=self._config.model.slots,
            in_flight=self._scheduler.in_flight,
            waiting=self._scheduler.waiting,
            steps=self._steps,
            stalled_s=0.0 if began is None else time.monotonic() - began,
            broken=self._broken,
        )

    # The step loop

    async def _run(self) -> None:
        while True:
            if not self._scheduler.busy:
                self._arrived.clear()
                await self._arrived.wait()
            self._step_began = time.monotonic()
            try:
                await self._step()
            except WorkerLostError as error:
                self._fail(error)
                return
            except Exception as error:
                self._scheduler.fail_all(error)
                self._publish(self._scheduler.drain(), None)
                if not await self._rejoin():
                    return
            finally:
                self._step_began = None

    async def _rejoin(self) -> bool:
        """A step that failed may have left the collective group broken: enter a new epoch."""
        try:
            await self._pool.join()
        except Exception as error:
            self._fail(WorkerLostError(f"the group could not be rebuilt after a failed step: {error}"))
            return False
        self._scheduler.epoch = self._pool.epoch
        return True

    async def _step(self) -> None:
        clock = time.perf_counter
        began = clock()
        plans = self._scheduler.plan(len(self._pool))
        if not plans:
            self._publish(self._scheduler.drain(), None)
            return
        planned = clock()
        calls = self._pool.scatter(plans)
        sent = clock()
        reports = await self._pool.gather(calls)
        gathered = clock()
        events = self._scheduler.advance(reports)
        self._steps += 1
        commit = max(report.commit_s for report in reports)
        forward = max(report.forward_s for report in reports)
        slowest = max(report.commit_s + report.forward_s for report in reports)
        timing = StepTiming(
            plan=planned - began,
            scatter=sent - planned,
            commit=commit,
            forward=forward,
            gather=max(0.0, gathered - sent - slowest),
            select=clock() - gathered,
        )
        self._publish(events, timing)

    def _publish(self, events: list[Event], timing: StepTiming | None) -> None:
        batches: dict[int, tuple[_Client, list[EngineEvent]]] = {}
        for event in events:
            owner = self._owners.get(event.request)
            if owner is None:
                continue  # its client went away
            client, number = owner
            batch = batches.setdefault(id(client), (client, []))[1]
            if isinstance(event, Failure):
                batch.append((number, event.error))
            else:
                batch.append((number, event.plan, event.outcome))
            if isinstance(event, Failure) or event.outcome.finish_reason is not None:
                del self._owners[event.request], client.requests[number]
        for client, batch in batches.values():
            client.queue.put_nowait(StepEvents(tuple(batch), timing))

    def _fail(self, error: LopaError) -> None:
        """The group cannot go on: every request, present and future, gets the reason."""
        self._broken = error
        self._pool.close()
        self._scheduler.fail_all(error)
        self._publish(self._scheduler.drain(), None)


def start_master(config: Config, runner_factory: RunnerFactory = default_runner) -> Any:
    """A master as an actor; its `start` is still to be called. Its workers are its children and end with it."""
    # The master computes next to nothing; it must not take a CPU from its workers.
    remote: Any = ray.remote(Master).options(num_cpus=0, max_restarts=0, max_concurrency=MAX_STREAMS)
    return remote.remote(config, runner_factory)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Around results of a master's calls: errors of ours come without Ray's wrapping."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, LopaError):
            raise error.cause from None
        raise
    except RayActorError as error:
        raise WorkerLostError(f"the group's master died: {error}") from None
