"""AsyncRayEngine: a decode group for asyncio programs that have many requests in flight.

All requests share one stream from the master, so a step costs one message however many they are.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Self, TypeAlias

import ray

import lopa_ray.decoders  # noqa: F401 - registers the decoders
from actors.branch_worker import RunnerFactory, WorkerInfo, default_runner
from actors.clients import StepEvents
from actors.master import MasterStatus, start_master, unwrapped
from actors.placement import Reservation
from lopa_ray.config import Config
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.plan import Plan, StepOutcome, StepTiming
from lopa_ray.session import DecodeSession

Step: TypeAlias = tuple[Plan, StepOutcome, StepTiming]

OnStep: TypeAlias = Callable[[StepEvents], None]


class AsyncRayEngine:
    """Master and branch workers of one group, on the Ray that this process is connected to."""

    def __init__(
        self,
        master: Any,
        reservation: Reservation,
        info: WorkerInfo,
        client: str,
        stream: Any,
        on_step: OnStep | None,
    ) -> None:
        """Over a master actor that is started already; see `start`. Needs a running event loop."""
        self.info = info
        self._master = master
        self._reservation = reservation
        self._on_step = on_step
        self._client = client
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[Step | Exception]] = {}
        self._lost: LopaError | None = None
        self._left: asyncio.Queue[int] = asyncio.Queue()
        """Requests that nobody listens to any more."""
        self._tasks = [asyncio.create_task(self._read(stream)), asyncio.create_task(self._cancel_left())]

    @classmethod
    async def start(
        cls,
        config: Config,
        *,
        runner_factory: RunnerFactory = default_runner,
        on_step: OnStep | None = None,
    ) -> Self:
        """Start a group; `on_step` sees every step's events. Raises what `Master.start` raises."""
        reservation, client = Reservation(config), uuid.uuid4().hex
        master = start_master(config, runner_factory, reservation.places)
        try:
            with unwrapped():
                info = await master.start.remote()
                stream = master.stream.options(num_returns="streaming").remote(client, {}, stay=True)
                await (await anext(stream))
        except BaseException:
            ray.kill(master)
            reservation.release()
            raise
        return cls(master, reservation, info, client, stream, on_step)

    async def decode(self, session: DecodeSession) -> AsyncGenerator[Step, None]:
        """The steps of a request. Closing the iterator frees its slot at the next step.

        Raises whatever ended the request, WorkerLostError if the group is lost.
        """
        if session.finished:
            return
        if self._lost is not None:
            raise self._lost
        number = next(self._numbers)
        queue = self._queues[number] = asyncio.Queue()
        finished = False
        try:
            with unwrapped():
                await self._master.submit.remote(self._client, {number: session})
            while not finished:
                step = await queue.get()
                finished = isinstance(step, Exception) or step[1].finish_reason is not None
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            del self._queues[number]
            if not finished:
                self._left.put_nowait(number)

    async def status(self) -> MasterStatus:
        """How the group is doing. Raises WorkerLostError if the master is lost."""
        with unwrapped():
            status: MasterStatus = await self._master.status.remote()
        return status

    async def resize(self, num_workers: int) -> None:
        """Have that many workers, while requests decode; see `Master.resize`. Raises SettingsError."""
        with unwrapped():
            await self._master.resize.remote(num_workers)

    def close(self) -> None:
        """End the group; requests in flight end with WorkerLostError."""
        for task in self._tasks:
            task.cancel()
        self._lose(WorkerLostError("the group was closed"))
        ray.kill(self._master)
        self._reservation.release()

    async def _read(self, stream: Any) -> None:
        try:
            async for ref in stream:
                with unwrapped():
                    batch: StepEvents = await ref
                if self._on_step is not None:
                    self._on_step(batch)
                self._hand_out(batch)
        except LopaError as error:
            self._lose(error)
        except Exception as error:
            self._lose(WorkerLostError(f"the group's events stopped: {type(error).__name__}: {error}"))
        else:
            self._lose(WorkerLostError("the group's events ended"))

    async def _cancel_left(self) -> None:
        """In a task of its own: what a call sends off while Ray cancels it, Ray may cancel too."""
        while True:
            self._master.cancel.remote(self._client, [await self._left.get()])

    def _hand_out(self, batch: StepEvents) -> None:
        for event in batch.events:
            queue = self._queues.get(event[0])
            if queue is None:
                continue  # nobody listens any more
            if len(event) == 2:
                queue.put_nowait(event[1])
            elif batch.timing is not None:
                queue.put_nowait((event[1], event[2], batch.timing))

    def _lose(self, error: LopaError) -> None:
        self._lost = self._lost or error
        for queue in self._queues.values():
            queue.put_nowait(self._lost)
