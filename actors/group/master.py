"""Master: the step loop of one decode group.

A plain class with async methods; `GroupFailover` wraps it in an actor. Each step is one scatter and one gather over the
branch workers, and one message to the client. With overlap the next step is sent before the reports of the last one are
gathered. A step that fails because workers were lost is run again on the remaining workers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

from ray.util.placement_group import PlacementGroup

from actors.calls.worker_handle import RunnerFactory, WorkerInfo
from actors.group.autoscaling_loop import AutoscalingLoop
from actors.group.group_membership import GroupMembership
from actors.group.held_group import HeldGroup
from actors.group.master_status import MasterStatus
from actors.group.start_phases import StartPhases
from actors.group.steps_in_flight import StepsInFlight
from actors.workers.worker_factory import WorkerFactory
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import (
    LopaError,
    ProtocolError,
    RepeatedLossError,
    SettingsError,
    TransferError,
    WorkerLostError,
    WorkerMemoryError,
)
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.protocol.events import RequestEvent, StepEvents
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import StepTiming
from lopa_ray.scheduling.scheduler import Scheduler

logger = logging.getLogger("lopa.group")

MAX_REPEATS = 3  # how often in a row a step is run again though no worker is lost and no request is to blame
IDLE_CHECK_S = 1.0  # seconds between two checks that idle workers are alive


class Master(HeldGroup):
    """Owns the scheduler and the workers. All state changes happen on its event loop."""

    def __init__(self, name: str = "group") -> None:
        """The process starts before the model is known. `name`: of the group, for Ray's dashboard."""
        super().__init__()
        self._name = name
        self._autoscaling: AutoscalingLoop | None = None
        self._loop: asyncio.Task[None] | None = None
        self._in_flight = StepsInFlight()
        self._steps = 0
        self._step_began: float | None = None
        self._repeats = 0
        self._unpublished: tuple[list[RequestEvent], StepTiming | None] = [], None  # of the last step
        self._published: asyncio.Queue[StepEvents] = asyncio.Queue()
        self._failed_steps = 0
        self._out_of_memory_steps = 0

    def __repr__(self) -> str:
        return f"{self._name}/master"

    async def start(
        self,
        spec: ModelSpec,
        runner_factory: RunnerFactory | None = None,
        reserved: PlacementGroup | None = None,
    ) -> tuple[WorkerInfo, dict[str, float]]:
        """Create the workers and wait until the group can begin; see `GroupMembership.start` and `WorkerFactory`.
        Raises CapacityError, CheckpointError, SettingsError, WorkerLostError."""
        phases = StartPhases()
        self._config = spec.config
        self.scheduler = Scheduler.from_config(spec.config)
        self.scheduler.weight_version = spec.weights.version
        factory = WorkerFactory(spec, runner_factory, reserved, self._name)
        self.membership = GroupMembership(factory, self._work_arrived.set)
        info = await self.membership.start(self.scheduler, phases)
        self._loop = asyncio.create_task(self._step_loop())
        if self._config.group.scaling is not None:
            self._autoscaling = AutoscalingLoop(self._config.group, self.membership, self.scheduler)
        self._started.set()
        return info, phases.seconds

    # The client

    async def stream(self) -> AsyncIterator[StepEvents]:
        """The events of all requests. A master has one client, which calls this once."""
        while True:
            yield await self._published.get()

    async def submit(self, sessions: Mapping[int, RequestSession], losses: Mapping[int, int]) -> None:
        """Queue requests (id → session). `losses`: `WorkerLostError.losses` of requests from a group that was lost.
        Raises ProtocolError for a session that is finished already."""
        for request_id, session in sessions.items():
            self.scheduler.submit(session, request_id)
            self.scheduler.poison.add_losses(request_id, losses.get(request_id, 0))
        if self._broken is not None:
            self._fail_all(self._broken)
        self._work_arrived.set()

    async def cancel(self, request_ids: list[int]) -> None:
        """Free the requests' slots at the next step. Those that have ended are passed over."""
        for request_id in request_ids:
            self.scheduler.cancel(request_id)

    # Operators

    async def resize(self, num_workers: int) -> None:
        """Have that many workers, while requests decode. Returns at once: fewer take effect at the next step, more once
        their model is loaded. A group that follows its load goes on from there. Raises SettingsError for less than 1,
        or beyond the bounds of `group.scaling`, and what broke the group."""
        if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 1:
            raise SettingsError(f"got {num_workers!r} workers; allowed: a whole number from 1 on")
        await self._started.wait()
        if self._broken is not None:
            raise self._broken
        if self._autoscaling is not None:
            self._autoscaling.resize(num_workers)
        self.membership.resize(num_workers)

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Checksums per worker and slot, once the group started. Raises ProtocolError while requests are in flight, and
        while the group sleeps."""
        await self._started.wait()
        if self.scheduler.busy or "sleep" in self.scheduler.holds:
            raise ProtocolError(
                "checksums are compared while the group is idle; requests are in flight, or it sleeps"
            )
        async with self._workers_lock:
            return await self.membership.pool.checksums()

    async def status(self) -> MasterStatus:
        """The group's state, right now, or as soon as it has started."""
        await self._started.wait()
        began = self._step_began
        return MasterStatus(
            workers=len(self.membership.pool),
            pending_workers=len(self.membership.pending),
            target_workers=self.membership.target,
            max_num_seqs=self._config.model.max_num_seqs,
            in_flight=self.scheduler.in_flight,
            waiting=self.scheduler.waiting,
            waiting_by_client=self.scheduler.waiting_by_client,
            steps=self._steps,
            stalled_s=0.0 if began is None else time.monotonic() - began,
            broken=self._broken,
            last_error=self.membership.pending.last_error,
            prefix_hits=self.scheduler.prefix_index.hit_requests,
            prefix_positions=self.scheduler.prefix_index.hit_positions,
            failed_steps=self._failed_steps,
            lost_workers=self.membership.pool.lost_workers,
            out_of_memory_steps=self._out_of_memory_steps,
            max_step_rows=self.scheduler.limit.rows,
            dtype=self._config.model.dtype,
        )

    # The step loop

    async def _step_loop(self) -> None:
        while self._broken is None:
            try:
                await self._wait_for_work()
                async with self._workers_lock:
                    self._step_began = time.monotonic()
                    await self.step()
                self._repeats = self._failed_steps = 0
            except Exception as error:
                self._failed_steps += 1
                self.handle(error)
            finally:
                self._step_began = None
                self._boundary.set()

    def handle(self, error: Exception) -> None:
        # The next step begins with a change of membership.
        self.membership.pool.intact = False
        if isinstance(error, WorkerLostError):
            logger.warning(f"workers were lost: {error}")
            if not len(self.membership.pool):
                self._end(error)
        elif isinstance(error, TransferError) or not self.scheduler.planned_ids:
            # No request is to blame: the workers do not form a group, or all requests of the step were cancelled.
            self._repeats += 1
            if self._repeats > MAX_REPEATS:
                self._end(WorkerLostError(f"the workers cannot go on together: {error}"))
        elif isinstance(error, WorkerMemoryError) and self.scheduler.split_steps():
            logger.warning(
                f"a step of {len(self.scheduler.planned_ids)} requests needs too much memory; from now on a worker "
                f"gets at most {self.scheduler.limit.rows} rows per step, and requests take turns ({error})"
            )
            self._out_of_memory_steps += 1
            self._failed_steps = 0  # each of these steps is smaller than the step before
        else:
            culprit = self.scheduler.poison.record_error(self.scheduler.planned_ids)
            if culprit is not None and isinstance(error, WorkerMemoryError):
                self.scheduler.refuse_branch()
            self._abort(culprit, error)

    async def _wait_for_work(self) -> None:
        while not self.scheduler.busy and not self._change_due:
            self._work_arrived.clear()
            try:
                await asyncio.wait_for(self._work_arrived.wait(), IDLE_CHECK_S)
            except TimeoutError:
                async with self._workers_lock:
                    await self.membership.pool.check_alive()

    async def step(self) -> None:
        """Send the steps that may be in flight, process the oldest. Raises why one failed; the next call repeats it."""
        if not self._in_flight and self._change_due:
            await self.membership.change(self.scheduler)
        if self.scheduler.lacks_costs and not self._in_flight:
            self.scheduler.set_costs(await self.membership.pool.forward_costs())
        try:
            try:
                self._send_steps()
            finally:
                self._publish()
            await self._process_step()
        except Exception as error:
            self._step_began = time.monotonic()  # of what is waited for from now on
            cause = await self._in_flight.drop(self.membership.pool, error)
            if isinstance(cause, WorkerLostError):
                self._record_loss(cause)
            if cause is error:
                raise
            raise cause from error
        if not self.scheduler.busy or self._change_due:
            self._publish()

    def _send_steps(self) -> None:
        """Send a step, and with overlap a second one, unless the group is about to change."""
        pool = self.membership.pool
        if not self._in_flight:
            self._in_flight.send(pool, self.scheduler.plan)
        if self._in_flight and not self._change_due:
            self._in_flight.send(pool, self.scheduler.plan_overlapped)

    async def _process_step(self) -> None:
        if not self._in_flight:
            self._unpublished = self.scheduler.advance([]), None
            return
        branches = self._in_flight.branches
        reports, step = await self._in_flight.gather(self.membership.pool)
        began = time.perf_counter()
        events = self.scheduler.advance(reports)
        select_s = time.perf_counter() - began
        self._unpublished = events, step.timing(reports, select_s)
        self._steps += 1
        if self._autoscaling is not None:
            # Of all requests in flight: with overlap a step has half of them, and lasts as long as both halves.
            seconds = step.plan_s + step.scatter_s + step.gather_s + select_s
            self._autoscaling.meter.record_step(branches, seconds)

    def _record_loss(self, error: WorkerLostError) -> None:
        """A request whose step has lost workers again and again ends with an error."""
        planned, with_group = self.scheduler.planned_ids, not len(self.membership.pool)
        culprit = self.scheduler.poison.record_loss(planned, with_group=with_group)
        reason = f"workers were lost each time that this request's step was run, at last alone: {error}"
        self._abort(culprit, RepeatedLossError(reason))

    def _publish(self) -> None:
        """Send the events of the last step, once the plans of the next one are on their way to the workers."""
        (events, timing), self._unpublished = self._unpublished, ([], None)
        if events:
            states = {event.request_key: self.scheduler.session_state(event.request_key) for event in events}
            going_on = {request_id: state for request_id, state in states.items() if state is not None}
            self._published.put_nowait(StepEvents(tuple(events), timing, going_on))

    def _abort(self, culprit: int | None, error: Exception) -> None:
        if culprit is not None:
            logger.warning(f"a request ends because its step fails when it is run alone: {error}")
            self.scheduler.abort(culprit, error)

    def _end(self, error: LopaError) -> None:
        """The group cannot go on: every request, present and future, gets the reason."""
        self._broken = error
        if self._autoscaling is not None:
            self._autoscaling.close()
        self.membership.close()
        self._fail_all(error)

    def _fail_all(self, error: LopaError) -> None:
        for request_id in self.scheduler.unfinished_ids:
            losses = self.scheduler.poison.losses[request_id]
            self.scheduler.abort(request_id, WorkerLostError(str(error), losses))
        self._unpublished = self.scheduler.drain(), None
        self._publish()
