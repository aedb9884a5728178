"""Master: the step loop of one decode group.

A plain class with async methods; `RayEngine` wraps it in an actor. Requests come as streaming
calls and join the loop at the next step; each step is one scatter and one gather over the
branch workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from actors.branch_pool import BranchPool
from actors.branch_worker import RunnerFactory, default_runner
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.engine import EngineEvent
from lopa_ray.errors import LopaError, ProtocolError, WorkerLostError
from lopa_ray.scheduler import Event, Failure, Scheduler
from lopa_ray.session import DecodeSession, Vocabulary


@dataclass(slots=True)
class _Listener:
    """A streaming call, and the index under which it knows a request."""

    queue: asyncio.Queue[EngineEvent]
    index: int


class Master:
    """Owns the scheduler and the workers. All state changes happen on its event loop."""

    def __init__(self, config: Config, runner_factory: RunnerFactory = default_runner) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `start`."""
        self._config = config
        self._runner_factory = runner_factory
        self._scheduler = Scheduler(config.model.slots)
        self._listeners: dict[int, _Listener] = {}
        self._arrived = asyncio.Event()
        self._broken: LopaError | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> Vocabulary:
        """Create the workers and wait until they are ready.

        Raises CapacityError, CheckpointError, SettingsError, WorkerLostError.
        """
        self._pool = BranchPool(self._config, self._runner_factory)
        info = await self._pool.start()
        self._loop = asyncio.create_task(self._run())
        return info.vocabulary

    async def stream(self, sessions: Sequence[DecodeSession]) -> AsyncIterator[EngineEvent]:
        """Decode the sessions; yields (index, plan, outcome) per step and (index, error) for a failure.

        Ends when all have ended. Cancelling the call frees their slots at the next step.
        """
        if self._broken is not None:
            for index in range(len(sessions)):
                yield index, self._broken
            return
        queue: asyncio.Queue[EngineEvent] = asyncio.Queue()
        requests: list[int] = []
        try:
            for index, session in enumerate(sessions):
                requests.append(self._scheduler.submit(session))
                self._listeners[requests[-1]] = _Listener(queue, index)
            self._arrived.set()
            unfinished = len(sessions)
            while unfinished:
                event = await queue.get()
                if len(event) == 2 or event[2].finish_reason is not None:
                    unfinished -= 1
                yield event
        finally:
            for request in requests:
                if self._listeners.pop(request, None) is not None:
                    self._scheduler.cancel(request)

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot. Raises ProtocolError while requests are in flight."""
        if self._scheduler.busy:
            raise ProtocolError("checksums are compared while the group is idle; requests are in flight")
        return await self._pool.checksums()

    async def _run(self) -> None:
        while True:
            if not self._scheduler.busy:
                self._arrived.clear()
                await self._arrived.wait()
            try:
                await self._step()
            except WorkerLostError as error:
                self._fail(error)
                return
            except Exception as error:
                self._scheduler.fail_all(error)
                self._publish(self._scheduler.drain())
                if not await self._rejoin():
                    return

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
        plans = self._scheduler.plan(len(self._pool))
        reports = await self._pool.step(plans) if plans else []
        self._publish(self._scheduler.advance(reports) if reports else self._scheduler.drain())

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            listener = self._listeners.get(event.request)
            if listener is None:
                continue  # its caller went away
            if isinstance(event, Failure):
                listener.queue.put_nowait((listener.index, event.error))
            else:
                listener.queue.put_nowait((listener.index, event.plan, event.outcome))
            if isinstance(event, Failure) or event.outcome.finish_reason is not None:
                del self._listeners[event.request]

    def _fail(self, error: LopaError) -> None:
        """The group cannot go on: every request, present and future, gets the reason."""
        self._broken = error
        self._pool.close()
        self._scheduler.fail_all(error)
        self._publish(self._scheduler.drain())
