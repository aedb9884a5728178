"""AsyncRayEngine: a decode group for asyncio programs that have many requests in flight.

All requests share one stream from the master, so a step costs one message however many they are.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Self, TypeAlias

import ray

from actors.branch_worker import RunnerFactory, WorkerInfo, default_runner
from actors.client_journals import RETRY_PAUSE_S, ClientJournals, not_replaced
from actors.client_streams import StepEvents
from actors.master import MasterStatus, start_master, unwrapped
from actors.placement import Reservation
from lopa_ray.config.config import Config
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.report import StepTiming

Step: TypeAlias = tuple[Plan, StepOutcome, StepTiming]

OnStep: TypeAlias = Callable[[StepEvents], None]

logger = logging.getLogger("lopa.group")


class AsyncRayEngine:
    """Master and branch workers of one group, on the Ray that this process is connected to."""

    def __init__(
        self,
        config: Config,
        runner_factory: RunnerFactory,
        master: Any,
        reservation: Reservation,
        info: WorkerInfo,
        client: str,
        stream: Any,
        on_step: OnStep | None,
    ) -> None:
        """Over a master actor that is started already; see `start`. Needs a running event loop."""
        self.info = info
        self._config = config
        self._runner_factory = runner_factory
        self._master = master
        self._reservation = reservation
        self._on_step = on_step
        self._client = client
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[Step | Exception]] = {}
        self._journals = ClientJournals()
        self._resized: int | None = None
        """How many workers were asked for last, after the start."""
        self.resuming = False
        """The group is lost, and another one is on its way."""
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
        try:
            master, info, stream = await _open(config, runner_factory, reservation, client)
        except BaseException:
            reservation.release()
            raise
        return cls(config, runner_factory, master, reservation, info, client, stream, on_step)

    async def decode(self, session: DecodeSession) -> AsyncGenerator[Step, None]:
        """The steps of a request. Closing the iterator frees its slot at the next step.

        Raises whatever ended the request; WorkerLostError if the group is lost and no other could
        take over.
        """
        if session.finished:
            return
        if self._lost is not None:
            raise self._lost
        number = next(self._numbers)
        queue = self._queues[number] = asyncio.Queue()
        self._journals.begin(number, session)
        finished = False
        try:
            if not self.resuming:
                await self._submit({number: session})
            while not finished:
                step = await queue.get()
                finished = isinstance(step, Exception) or step[1].finish_reason is not None
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            del self._queues[number]
            self._journals.end(number)
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
        self._resized = num_workers

    def close(self) -> None:
        """End the group; requests in flight end with WorkerLostError."""
        for task in self._tasks:
            task.cancel()
        self._lose(WorkerLostError("the group was closed"))
        ray.kill(self._master)
        self._reservation.release()

    async def _submit(self, sessions: dict[int, DecodeSession]) -> None:
        """If the group is lost meanwhile, whoever reads its events will notice, and go on with all requests."""
        with suppress(WorkerLostError), unwrapped():
            await self._master.submit.remote(self._client, sessions)

    async def _read(self, stream: Any) -> None:
        """Hand out events, of one group after the other."""
        while True:
            loss = await self._follow(stream)
            self.resuming, began = True, time.monotonic()
            logger.warning(f"the group is lost: {loss}")
            if self._journals.stuck:
                self._fail(loss)
            try:
                stream = await self._replace(loss)
            except WorkerLostError as error:
                self._lose(error)
                return
            self.resuming = False
            requests = self._journals.resumed()
            logger.warning(f"{len(requests)} requests go on after {time.monotonic() - began:.1f} s")
            await self._submit(requests)

    async def _follow(self, stream: Any) -> WorkerLostError:
        """Hand out a group's events until it is lost; returns why."""
        try:
            async for ref in stream:
                with unwrapped():
                    batch: StepEvents = await ref
                if self._on_step is not None:
                    self._on_step(batch)
                self._hand_out(batch)
        except WorkerLostError as error:
            return error
        except Exception as error:
            return WorkerLostError(f"the group's events stopped: {type(error).__name__}: {error}")
        return WorkerLostError("the group's events ended")

    async def _replace(self, loss: WorkerLostError) -> Any:
        """Start another group; returns its stream. Raises WorkerLostError if that fails."""
        within = self._config.group.resume_timeout_s
        if not within:
            raise loss
        last: Exception | None = None
        try:
            async with asyncio.timeout(within):
                while True:
                    ray.kill(self._master)
                    try:
                        return await self._open_another()
                    except WorkerLostError as error:
                        last = error
                        await asyncio.sleep(RETRY_PAUSE_S)
        except TimeoutError as error:
            raise not_replaced(loss, last or error, within) from None
        except Exception as error:
            raise not_replaced(loss, error, within) from None

    async def _open_another(self) -> Any:
        """The stream of another group in the same places, of the size that was asked for last."""
        self._master, _, stream = await _open(
            self._config, self._runner_factory, self._reservation, self._client
        )
        if self._resized is not None:
            await self.resize(self._resized)
        return stream

    async def _cancel_left(self) -> None:
        """In a task of its own: what a call sends off while Ray cancels it, Ray may cancel too."""
        while True:
            self._master.cancel.remote(self._client, [await self._left.get()])

    def _hand_out(self, batch: StepEvents) -> None:
        for event in self._journals.take(batch):
            queue = self._queues[event.request_id]
            if isinstance(event, RequestFailure):
                queue.put_nowait(event.error)
            elif batch.timing is not None:
                queue.put_nowait((event.plan, event.outcome, batch.timing))

    def _lose(self, error: LopaError) -> None:
        self._lost = self._lost or error
        self._fail(self._lost)

    def _fail(self, error: LopaError) -> None:
        for number in self._journals:
            self._journals.end(number)
            self._queues[number].put_nowait(error)


async def _open(
    config: Config, runner_factory: RunnerFactory, reservation: Reservation, client: str
) -> tuple[Any, WorkerInfo, Any]:
    """A master that is started, what its workers say, and its stream of the client's events."""
    master = start_master(config, runner_factory, reservation.places)
    try:
        with unwrapped():
            info = await master.start.remote()
            stream = master.stream.options(num_returns="streaming").remote(client, {}, stay=True)
            await (await anext(stream))
    except BaseException:
        ray.kill(master)
        raise
    return master, info, stream
