"""AsyncRayEngine: a decode group for asyncio programs that have many requests in flight. All requests share one stream
from the master, so a step costs one message however many they are."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import ray

from actors.calls.actor_errors import unwrapped_errors
from actors.calls.worker_handle import RunnerFactory, WorkerInfo
from actors.client.client_journals import ClientJournals
from actors.client.group_controls import GroupControls
from actors.client.group_failover import GroupFailover
from actors.client.master_watch import MasterWatch
from actors.group.master_status import MasterStatus
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.async_base import AsyncEngine
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import LopaError, ProtocolError, RepeatedLossError, WorkerLostError
from lopa_ray.execution.model_files import download_weights
from lopa_ray.model.hub.repository import short_name
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep, StepEvents
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    pass

OnStepEvents: TypeAlias = Callable[[StepEvents], None]

logger = logging.getLogger("lopa.group")


class AsyncRayEngine(AsyncEngine, GroupControls):
    """Master and branch workers of one group, on the Ray that this process is connected to."""

    def __init__(
        self,
        config: Config,
        info: WorkerInfo,
        tokenizer: Tokenizer | None,
        group: GroupFailover,
        on_step: OnStepEvents | None,
    ) -> None:
        """Over a group that `start` has started. Needs a running event loop."""
        super().__init__(config, info.vocabulary, tokenizer)
        GroupControls.__init__(self, group)
        self.position_bytes = info.position_bytes
        self.resuming = False
        self.lost_groups = 0
        """Groups that were lost, including a group that is being replaced."""
        self._on_step = on_step
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[RequestEvent]] = {}
        self._journals = ClientJournals()
        self._watch = MasterWatch(config.group)
        self._abandoned: asyncio.Queue[list[int]] = asyncio.Queue()  # of callers that have stopped iterating
        self._canceller = asyncio.create_task(self._cancel_abandoned())
        self._reader = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls,
        config: Config,
        *,
        runner_factory: RunnerFactory | None = None,
        on_step: OnStepEvents | None = None,
        name: str | None = None,
    ) -> Self:
        """Start a group; `on_step` sees every step's events. `name`: of its actors in Ray's dashboard, as NAME/master
        (None: the model's). Close the engine, or use it as an asynchronous context manager. Raises as `Master.start`.
        """
        group = GroupFailover(config, runner_factory, name or short_name(config.model.path))
        try:
            config, spec, tokenizer = await asyncio.to_thread(open_model, config)
            if sum(node["Alive"] for node in ray.nodes()) == 1:
                # The workers' download, here with a visible progress bar and without a deadline.
                await asyncio.to_thread(download_weights, spec.config.model)
            info = await group.start(spec)
        except BaseException:
            group.close()
            raise
        return cls(config.replace(model=group.spec.config.model), info, tokenizer, group, on_step)

    # Requests

    async def events(self, sessions: Sequence[RequestSession]) -> AsyncGenerator[RequestEvent, None]:
        """See `AsyncEngine.events`. A request fails with WorkerLostError if the group is lost and no other group could
        take over. Raises ProtocolError for a session that is finished already."""
        if any(session.finished for session in sessions):
            raise ProtocolError("a session that is finished already has no steps; leave it out")
        queue: asyncio.Queue[RequestEvent] = asyncio.Queue()
        index_of = {next(self._numbers): index for index in range(len(sessions))}
        unfinished = set(index_of)
        try:
            for number, index in index_of.items():
                self._queues[number] = queue
                self._journals.begin(number, sessions[index])
            if self.lost is not None:
                self._fail(self._journals, self.lost)
            elif not self.resuming:
                await self._submit({number: sessions[index] for number, index in index_of.items()}, {})
            while unfinished:
                event = await queue.get()
                if isinstance(event, RequestFailure) or event.outcome.finish_reason is not None:
                    unfinished.discard(event.request_key)
                yield replace(event, request_key=index_of[event.request_key])
        finally:
            for number in index_of:
                del self._queues[number]
                self._journals.end(number)
            if unfinished:
                self._abandoned.put_nowait(list(unfinished))

    # Operators

    @property
    def num_workers(self) -> int:
        return super().num_workers if self.last_status is None else self.last_status.workers

    @property
    def start_phases(self) -> dict[str, float]:
        """Seconds of each phase of the last start of a group, in order. checkpoint: its configuration and tokenizer,
        and a download on a single node (first group alone); master: until its process is ready; workers: until all are
        placed and theirs are ready; model: until all have loaded it; join: until they reach each other."""
        return self._group.phases

    @property
    def last_status(self) -> MasterStatus | None:
        """The master's last answer; it is asked once per second. None before the first."""
        return self._watch.status

    async def status(self) -> MasterStatus:
        """The state of the group. Raises WorkerLostError if the master is lost."""
        return cast(MasterStatus, await self._group.call("status"))

    async def resize(self, num_workers: int) -> None:
        await self._group.resize(num_workers)

    async def checksums(self) -> list[list[SlotChecksum]]:
        return cast(list[list[SlotChecksum]], await self._group.call("checksums"))

    def revive(self) -> None:
        """Try again to start a group, in the background, after one was lost and none could take its place."""
        loss, self.lost = self.lost, None
        if loss is not None:
            self._reader = asyncio.create_task(self._run(loss))

    def close(self) -> None:
        """End the group; requests in flight end with WorkerLostError."""
        self._canceller.cancel()
        self._reader.cancel()
        self._give_up(WorkerLostError("the group was closed"))
        self._group.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # One group after the other

    async def _run(self, loss: LopaError | None = None) -> None:
        """Hand out the events of one group after the other, until none can take over. `loss`: of the group before."""
        try:
            while True:
                await self._replace_group(loss or await self._follow())
                loss = None
        except LopaError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("the requests of this engine cannot go on")
            self._give_up(WorkerLostError(f"the engine failed: {type(error).__name__}: {error}"))

    async def _replace_group(self, loss: LopaError) -> None:
        """Continue the unfinished requests on another group. Raises WorkerLostError if none can take over."""
        if not ray.is_initialized():
            raise loss
        self.resuming, began = True, time.monotonic()
        self._settled.clear()
        self.lost_groups += 1
        logger.warning(f"the group is lost: {str(loss).splitlines()[0]}")
        try:
            await self._group.replace(loss)
        finally:
            self.resuming = False
        sessions = self._journals.resumed_sessions()
        logger.warning(f"{len(sessions)} requests go on after {time.monotonic() - began:.1f} s")
        await self._submit(sessions, self._journals.losses)
        self._settled.set()

    async def _follow(self) -> WorkerLostError:
        """Hand out a group's events until it is lost or has to be given up; returns why."""
        events, watch = (
            asyncio.create_task(task)
            for task in (self._hand_out_events(), self._watch.run(self._group.master))
        )
        try:
            await asyncio.wait((events, watch), return_when=asyncio.FIRST_COMPLETED)
            # A master that has died is seen by both, and the events have come first.
            if not watch.done() or watch.exception() is not None:
                return await events
            loss = watch.result()
            self._fail_silent(loss)
            return loss
        finally:
            events.cancel()
            watch.cancel()

    async def _hand_out_events(self) -> WorkerLostError:
        try:
            async for reference in self._group.stream:
                with unwrapped_errors():
                    batch: StepEvents = await reference
                if self._on_step is not None:
                    self._on_step(batch)
                for event in self._journals.record(batch):
                    if isinstance(event, RequestStep):
                        event = replace(event, timing=batch.timing)
                    self._queues[event.request_key].put_nowait(event)
                if (ended := self._journals.group_loss(batch)) is not None:
                    return ended
        except WorkerLostError as error:
            loss = error
        except Exception as error:
            loss = WorkerLostError(f"the group's events stopped: {type(error).__name__}: {error}")
        else:
            loss = WorkerLostError("the group's events ended")
        self._fail_silent(loss)
        return loss

    def _fail_silent(self, loss: WorkerLostError) -> None:
        """The group does not say which of its requests go on; see `ClientJournals.record_silent_loss`."""
        culprit = self._journals.record_silent_loss(self.config.model.max_num_seqs)
        if culprit is not None:
            reason = f"its group was lost each time that this request's step was run, at last alone: {loss}"
            self._fail([culprit], RepeatedLossError(reason))

    async def _submit(self, sessions: dict[int, RequestSession], losses: Mapping[int, int]) -> None:
        """Send sessions to the master. If the group is lost meanwhile, `_run` resubmits all requests."""
        with suppress(WorkerLostError):
            await self._group.call("submit", sessions, losses)

    async def _cancel_abandoned(self) -> None:
        """Run in a task of its own: what a call sends off while Ray cancels it, Ray may cancel too."""
        while True:
            numbers = await self._abandoned.get()
            self._group.master.cancel.remote(numbers)

    def _give_up(self, error: LopaError) -> None:
        self.lost = self.lost or error
        self._settled.set()
        self._group.kill()
        self._fail(self._journals, self.lost)

    def _fail(self, numbers: Iterable[int], error: LopaError) -> None:
        for number in numbers:
            self._journals.end(number)
            self._queues[number].put_nowait(RequestFailure(number, error))
