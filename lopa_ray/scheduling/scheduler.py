"""Scheduler: the step loop of many requests, without I/O.

    while scheduler.busy:
        step_plans = scheduler.plan(num_workers)
        reports = ...            # runner.execute(plan), here or on actors
        for event in scheduler.advance(reports): ...

Requests join and leave between steps. With overlap two steps are in flight, of different requests: `plan_overlapped`
plans the second step. Workers compute them in the order in which they were planned, and `advance` gets their reports in
that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.config.group_settings import AutoSwitch
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import ProtocolError, RequestCancelledError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.forward_costs import ForwardCosts
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.step_report import StepReport, reports_by_request
from lopa_ray.scheduling.fair_queue import FairQueue
from lopa_ray.scheduling.holds import Hold, Holds, Running
from lopa_ray.scheduling.planned_step import STEPS_IN_FLIGHT, PlannedStep
from lopa_ray.scheduling.poison_requests import PoisonRequests
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.running_request import RunningRequest
from lopa_ray.scheduling.step_limit import StepLimit
from lopa_ray.scheduling.step_selection import StepSelection


class Scheduler:
    """Manages all requests. At most `max_num_seqs` are in flight; the others wait."""

    def __init__(
        self,
        max_num_seqs: int,
        prefix_index: PrefixIndex | None = None,
        limit: StepLimit | None = None,
        *,
        overlap: AutoSwitch = False,
    ) -> None:
        """Store no prefixes without `prefix_index`. `overlap`: two steps may be in flight, each of half of
        the requests; auto: where steps are large enough."""
        self.prefix_index = prefix_index or PrefixIndex(0)
        self.weight_version = 0
        self.epoch = 0  # of the current membership of workers (see `enter_epoch`); older reports are rejected
        self.poison = PoisonRequests()
        self.limit = limit or StepLimit()
        self._overlap = overlap
        self._step = 0
        self._planned: deque[PlannedStep] = deque()  # the steps in flight, the oldest first
        self._free_slots = list(range(max_num_seqs))
        self._queue = FairQueue()
        self._selection = StepSelection(self.prefix_index, self._queue, self.poison, self.limit, overlap)
        self._running: dict[int, RunningRequest] = {}
        self._next_request = 0
        self._weighs_costs = False  # whether any request has
        self.holds = Holds()
        self._pending_events: list[RequestEvent] = []

    @classmethod
    def from_config(cls, config: ExecutionConfig) -> Self:
        model = config.model
        scheduler = cls(
            model.max_num_seqs,
            PrefixIndex.from_settings(model),
            StepLimit(model.max_num_batched_tokens),
            overlap=config.overlap,
        )
        if config.group.forward_costs is not None:
            scheduler.set_costs(ForwardCosts.of(config.group.forward_costs))
        return scheduler

    @property
    def lacks_costs(self) -> bool:
        """Whether a step may be planned of requests whose number of branches follows costs, which are not known."""
        return self._weighs_costs and self._selection.costs is None and not self.holds.reached

    def set_costs(self, costs: ForwardCosts) -> None:
        """The costs of a worker's forward, from the next step on."""
        self._selection.costs = costs

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue.waiting)

    @property
    def waiting_by_client(self) -> dict[str, int]:
        return self._queue.waiting_by_client

    @property
    def busy(self) -> bool:
        """Whether a step is in flight or may be planned, or an event was not returned yet."""
        may_plan = not self.holds.reached and (self._running or self._may_join)
        return bool(may_plan or self._pending_events or self._planned)

    # Holds

    def hold(self, reason: Hold, running: Running) -> None:
        """Plan no further step until `holds.remove`; with wait when no request is left that has begun. abort: these end
        with RequestCancelledError. keep: they stay as they are. Raises as `Holds.add`."""
        self.holds.add(reason, running, have_begun=bool(self.begun))
        for request_id in self.begun if running == "abort" else ():
            self.abort(request_id, RequestCancelledError(f"request {request_id} was aborted: {reason}"))

    def is_held(self, reason: Hold) -> bool:
        """Whether the hold is reached: no step is in flight, and none follows."""
        if self.holds.awaited == reason and not self.begun:
            self.holds.remove(reason)
            self.holds.reached.add(reason)
        return reason in self.holds.reached and not self._planned

    @property
    def begun(self) -> tuple[int, ...]:
        """The requests that have a slot, or had one."""
        return (*self._running, *self._queue.begun)

    @property
    def _may_join(self) -> bool:
        return bool(self._queue.begun if self.holds.awaited else self._queue.waiting)

    def suspend(self) -> None:
        """Between steps: take the slots of all requests. Their K/V are computed anew, and stored prefixes are gone."""
        for request_id in [*self._running]:
            self._suspend(request_id)
        self.prefix_index.clear()

    def submit(self, session: RequestSession, request_id: int | None = None) -> int:
        """Queue a request, and return its id (None: the next number); it joins when its client gets a slot. Raises
        ProtocolError for a session that is already finished."""
        if session.finished:
            raise ProtocolError("a finished session cannot be submitted")
        if request_id is None:
            self._next_request += 1
            request_id = self._next_request
        self._weighs_costs |= session.weighs_costs
        self._queue.add(request_id, session)
        return request_id

    def abort(self, request_id: int, error: Exception) -> None:
        """End a request with an error and free its slot. Ids of requests that have ended are ignored."""
        self.poison.clear([request_id])
        running = self._running.get(request_id)
        if running is not None:
            self._release(request_id, running)
        if running is not None or request_id in self._queue.waiting:
            self._queue.end(request_id)
            self._pending_events.append(RequestFailure(request_id, error))

    def _release(self, request_id: int, entry: RunningRequest) -> None:
        del self._running[request_id]
        self._free_slots.append(entry.slot)
        if entry.save_prefix is not None:
            self.prefix_index.cancel_reservation(entry.save_prefix)

    def cancel(self, request_id: int) -> None:
        self.abort(request_id, RequestCancelledError(f"request {request_id} was cancelled"))

    @property
    def unfinished_ids(self) -> tuple[int, ...]:
        return (*self._running, *self._queue.waiting)

    @property
    def planned_ids(self) -> tuple[int, ...]:
        return tuple(request_id for request_id, entry in self._running.items() if entry.plan is not None)

    @property
    def request_by_slot(self) -> dict[int, int]:
        return {entry.slot: request_id for request_id, entry in self._running.items()}

    def session_state(self, request_id: int) -> bytes | None:
        entry = self._running.get(request_id)
        session = self._queue.waiting.get(request_id) if entry is None else entry.session
        return None if session is None else session.export_state()

    def pending_commits(self) -> list[ScheduledRequest]:
        """The scheduled request that staged each commit's K/V of the next step, with its winning branch only."""
        return [entry.pending_commit for entry in self._running.values() if entry.pending_commit is not None]

    def enter_epoch(self, epoch: int, source_ranks: Mapping[int, int]) -> None:
        """Begin a new epoch. `source_ranks`: request → rank of the worker that has the K/V of its pending commit,
        unless all have."""
        self.epoch = epoch
        self.prefix_index.clear()
        for request_id, entry in self._running.items():
            entry.source_rank, entry.save_prefix = source_ranks.get(request_id), None
            entry.drop_parts()

    def plan(self, num_workers: int) -> list[StepPlan]:
        """One plan per worker for the next step; an empty list when no request is in flight. Steps in flight are given
        up, and are planned again in the current epoch."""
        self._planned.clear()
        for entry in self._running.values():
            entry.plan, entry.stored_prefix = None, ()
        if self.holds.reached:
            return []
        self._assign_slots()
        return self._plan_step(num_workers)

    def plan_overlapped(self, num_workers: int) -> list[StepPlan]:
        """One plan per worker for a step that is computed after the steps in flight, of requests that are in none of
        them; an empty list if there is no such step."""
        full = len(self._planned) == (STEPS_IN_FLIGHT if self._overlap else 1)
        if full or self.holds.reached or any(step.waiting_branch_rows for step in self._planned):
            return []
        self._assign_slots()
        if self.poison.next_of(self._running) is not None:
            return []
        return self._plan_step(num_workers)

    def _plan_step(self, num_workers: int) -> list[StepPlan]:
        number = self._step + len(self._planned) + 1
        step = self._selection.select(self._running, number, num_workers, self.abort)
        if not step.entries:
            return []
        self._planned.append(step)
        return step.step_plans(self.epoch)

    def _assign_slots(self) -> None:
        """Let requests join. A client that has no slot takes one from a client that has several."""
        draining = self.holds.awaited is not None
        while self._may_join and (self._free_slots or (not draining and self._preempt())):
            request_id, session = self._queue.pop(begun=draining)
            session.use_weights(self.weight_version)
            self._running[request_id] = RunningRequest(request_id, session, self._free_slots.pop(0))

    def _preempt(self) -> bool:
        steps = {key: entry.session.steps for key, entry in self._running.items() if entry.plan is None}
        victim = self._queue.victim(steps)
        if victim is None:
            return False
        self._suspend(victim)
        return True

    def _suspend(self, request_id: int) -> None:
        entry = self._running[request_id]
        self._release(request_id, entry)
        self._queue.requeue(request_id, entry.suspended())

    def split_steps(self) -> bool:
        """The oldest step in flight needed too much memory: later steps are smaller. False if it cannot be split."""
        if not self._planned or max(self._planned[0].assignment.lanes, default=0) < 2:
            return False
        self.limit.record_lack(self._planned[0].assignment.rows)
        return True

    def refuse_branch(self) -> None:
        """The step in flight, of one branch per worker, needed too much memory: branches as long are refused."""
        self.limit.refuse_branch(self._planned[0].assignment.rows)

    def advance(self, step_reports: Sequence[StepReport]) -> list[RequestEvent]:
        """Process the reports of all workers of the oldest step in flight, and return its events and those that
        occurred outside of steps. Raises ProtocolError, without any change of state, for a report of another step or
        epoch."""
        if not step_reports and not self.planned_ids:
            self._planned.clear()
            return self.drain()
        for report in step_reports:
            if (report.epoch, report.step) != (self.epoch, self._step + 1):
                raise ProtocolError(
                    f"got a report of epoch {report.epoch}, step {report.step}; "
                    f"this is epoch {self.epoch}, step {self._step + 1}"
                )
        by_request = reports_by_request(step_reports)
        step = self._planned.popleft()
        self._step = step.number
        self._selection.record(step, max(report.forward_s for report in step_reports))
        entries = [entry for entry in step.entries if self._running.get(entry.id) is entry]
        step.confirm_prefixes(self.prefix_index, entries)
        events: list[RequestEvent] = []
        for entry in entries:
            request_id, plan = entry.id, entry.plan
            assert plan is not None
            entry.plan, entry.last_step = None, self._step
            if entry.replay:  # no event, because the outcome of this step was reported before
                self._queue.serve(request_id, plan.num_rows)
                entry.finish_replay_step(plan)
                continue
            self._queue.serve(request_id, plan.rows_of(entry.assigned))
            if not entry.add_reports(plan, by_request.get(request_id, [])):
                continue
            self.poison.clear([request_id])
            try:
                outcome = entry.session.advance(entry.reports)
            except Exception as error:
                self.abort(request_id, error)
                continue
            entry.finish_step(plan, outcome, len(step.assignment.load))
            if outcome.finish_reason is not None:
                self._release(request_id, entry)
                self._queue.end(request_id)
            else:
                entry.save_prefix = self.prefix_index.reserve(self.prefix_index.hash_prefixes(plan))
            events.append(entry.event(plan, outcome))
        return events + self.drain()

    def drain(self) -> list[RequestEvent]:
        """Return the events that occurred outside of `advance`, each once."""
        events, self._pending_events = self._pending_events, []
        return events
