"""Scheduler: the step loop of many requests, without I/O.

Requests join and leave between steps. `plan` plans a step for every request in flight and assigns the branches to the
workers. `advance` processes the workers' reports:

    while scheduler.busy:
        step_plans = scheduler.plan(num_workers)
        reports = ...            # runner.execute(plan), here or on actors
        for event in scheduler.advance(reports): ...

Sessions do not know the number of workers, nor which worker evaluates a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.decoding.branch_budget import BranchBudget
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import ProtocolError, RequestCancelledError
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest, StepPlan, StoredPrefix
from lopa_ray.protocol.step_report import BranchReport, StepReport
from lopa_ray.scheduling.prefix_index import PrefixIndex


@dataclass(slots=True)
class _RunningRequest:
    """A request that has a slot."""

    session: DecodeSession
    slot: int
    plan: Plan | None = None
    rank_of_branch: dict[int, int] = field(default_factory=dict)
    """Branch of the current plan → rank of the worker that evaluates it."""
    source_rank: int | None = None
    """Rank of the worker that has the K/V of the next plan's commit; None if every worker has them."""
    pending_commit: ScheduledRequest | None = None
    """The last plan with its winner, which staged these K/V. It is kept until a step has committed them."""
    replay: list[ScheduledRequest] = field(default_factory=list)
    """Plans that every worker must carry out, in order, before the session's next step; see `Journal`."""
    stored_prefix: tuple[StoredPrefix, ...] = ()
    """Stored K/V of earlier requests that the current plan uses."""
    save_prefix: StoredPrefix | None = None
    """K/V that the workers save for later requests when they carry out the next plan's commit."""


class Scheduler:
    """Manages all requests. At most `max_num_seqs` are in flight; the others wait."""

    def __init__(
        self, max_num_seqs: int, budget: BranchBudget | None = None, prefix_index: PrefixIndex | None = None
    ) -> None:
        """Without `budget` every request gets the number of branches of its settings. Without `prefix_index` no
        prefixes are stored."""
        self._budget = budget or BranchBudget()
        self.prefix_index = prefix_index or PrefixIndex(0)
        self.epoch = 0
        """The number of the current membership of workers (see `enter_epoch`). Reports of older epochs are rejected."""
        self._step = 0
        self._num_workers = 0
        self._free_slots = list(range(max_num_seqs))
        self._waiting: dict[int, DecodeSession] = {}
        self._running: dict[int, _RunningRequest] = {}
        self._next_request = 0
        self._pending_events: list[RequestEvent] = []
        self._evictions: tuple[int, ...] = ()
        """Ids of stored prefixes that the workers evict in the current step."""

    @classmethod
    def from_config(cls, config: ExecutionConfig) -> Self:
        """The scheduler of a configuration."""
        prefix_index = PrefixIndex.from_settings(config.model)
        return cls(config.model.max_num_seqs, BranchBudget(config.group.shared_branches), prefix_index)

    @property
    def in_flight(self) -> int:
        """Requests that have a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a request is in flight or waiting, or an event was not returned yet."""
        return bool(self._running or self._waiting or self._pending_events)

    def submit(self, session: DecodeSession) -> int:
        """Queue a request, and return its id. It joins at the first step boundary at which a slot is free.

        Raises ProtocolError for a session that is already finished.
        """
        if session.finished:
            raise ProtocolError("a finished session cannot be submitted")
        self._next_request += 1
        self._waiting[self._next_request] = session
        return self._next_request

    def abort(self, request_id: int, error: Exception) -> None:
        """End a request with an error and free its slot. Ids of requests that have ended are ignored."""
        running = self._running.get(request_id)
        if running is not None:
            self._release(request_id, running)
        if running is not None or self._waiting.pop(request_id, None) is not None:
            self._pending_events.append(RequestFailure(request_id, error))

    def _release(self, request_id: int, entry: _RunningRequest) -> None:
        """Free a request's slot."""
        del self._running[request_id]
        self._free_slots.append(entry.slot)
        if entry.save_prefix is not None:
            self.prefix_index.cancel_reservation(entry.save_prefix)

    def cancel(self, request_id: int) -> None:
        """End a request with RequestCancelledError and free its slot."""
        self.abort(request_id, RequestCancelledError(f"request {request_id} was cancelled"))

    def abort_all(self, error: Exception) -> None:
        """End every request with the same error."""
        for request_id in [*self._running, *self._waiting]:
            self.abort(request_id, error)

    @property
    def running_ids(self) -> tuple[int, ...]:
        """Ids of the requests that have a slot, in the order in which they got it."""
        return tuple(self._running)

    @property
    def request_by_slot(self) -> dict[int, int]:
        """Slot → id of the request that has it."""
        return {entry.slot: request_id for request_id, entry in self._running.items()}

    def session_state(self, request_id: int) -> bytes | None:
        """The session state of a request; None if it has no slot now. See `DecodeSession.export_state`."""
        entry = self._running.get(request_id)
        return None if entry is None else entry.session.export_state()

    def pending_commits(self) -> list[ScheduledRequest]:
        """For each commit of the next step, the scheduled request that staged its K/V, with its winning branch only."""
        return [entry.pending_commit for entry in self._running.values() if entry.pending_commit is not None]

    def enter_epoch(self, epoch: int, source_ranks: Mapping[int, int]) -> None:
        """Begin a new epoch, in which ranks may have changed.

        `source_ranks` maps each request to the rank of the worker that has the K/V of its pending commit. Requests
        whose K/V every worker has are left out.
        """
        self.epoch = epoch
        self.prefix_index.clear()
        for request_id, entry in self._running.items():
            entry.source_rank, entry.save_prefix = source_ranks.get(request_id), None

    def plan(self, num_workers: int, only: int | None = None) -> list[StepPlan]:
        """One plan per worker for the next step; an empty list when no request is in flight.

        A second call before `advance` plans the same step again, in the current epoch. With `only`, a request id, the
        step is for that request alone.
        """
        while self._free_slots and self._waiting:
            request_id = next(iter(self._waiting))
            session, slot = self._waiting.pop(request_id), self._free_slots.pop(0)
            replay = [replace(scheduled, request_id=request_id, slot=slot) for scheduled in session.replay]
            self._running[request_id] = _RunningRequest(session, slot, replay=replay)
        for request_id, entry in list(self._running.items()):
            entry.plan, entry.stored_prefix = None, ()
            if only not in (None, request_id):
                continue
            if entry.replay:
                entry.plan = entry.replay[0].plan
                continue
            try:
                branches = self._budget.num_branches(entry.session.settings, len(self._running))
                entry.plan = entry.session.plan(branches)
                entry.stored_prefix = self.prefix_index.match(self.prefix_index.hash_prefixes(entry.plan))
            except Exception as error:  # an error of one request must not end the others
                self.abort(request_id, error)
        self._assign_branches(num_workers)
        if not self._planned:
            return []
        self._evictions = self.prefix_index.pending_evictions
        return [
            StepPlan(self.epoch, self._step + 1, self._scheduled_requests(rank), self._evictions)
            for rank in range(num_workers)
        ]

    @property
    def _planned(self) -> bool:
        """Whether the current step has a plan for any request."""
        return any(entry.plan is not None for entry in self._running.values())

    def _assign_branches(self, num_workers: int) -> None:
        """Assign each branch to the worker with the fewest rows so far; of equal workers, to the lowest rank."""
        self._num_workers = num_workers
        load = [0] * num_workers
        for entry in self._running.values():
            plan = entry.plan
            if plan is None or entry.replay:
                continue
            entry.rank_of_branch = {}
            for index, branch in enumerate(plan.branches):
                rank = load.index(min(load))
                load[rank] += (
                    branch.stop - plan.start - sum(len(stored.span) for stored in entry.stored_prefix)
                )
                entry.rank_of_branch[index] = rank

    def _scheduled_requests(self, rank: int) -> tuple[ScheduledRequest, ...]:
        """The requests of a worker's step. Every worker gets every plan, because all commit and cut their caches."""
        return tuple(
            replace(entry.replay[0], source_rank=entry.source_rank)
            if entry.replay
            else ScheduledRequest(
                request_id,
                entry.slot,
                entry.plan,
                tuple(b for b, r in entry.rank_of_branch.items() if r == rank),
                entry.source_rank,
                entry.stored_prefix,
                entry.save_prefix,
            )
            for request_id, entry in self._running.items()
            if entry.plan is not None
        )

    def advance(self, step_reports: Sequence[StepReport]) -> list[RequestEvent]:
        """Process the reports of all workers, and return the events. Reports of requests that have ended are ignored.

        If nothing was planned and there are no reports, it returns the events that occurred outside of steps. Raises
        ProtocolError, without any change of state, for a report of another step or epoch.
        """
        if not step_reports and not self._planned:
            return self.drain()
        for report in step_reports:
            if (report.epoch, report.step) != (self.epoch, self._step + 1):
                raise ProtocolError(
                    f"got a report of epoch {report.epoch}, step {report.step}; "
                    f"this is epoch {self.epoch}, step {self._step + 1}"
                )
        by_request: dict[int, list[BranchReport]] = {}
        for report in step_reports:
            for request_id, branch_report in report.reports:
                by_request.setdefault(request_id, []).append(branch_report)
        self._step += 1
        self._confirm_prefixes()
        events: list[RequestEvent] = []
        for request_id, entry in list(self._running.items()):
            if entry.plan is None:
                continue
            plan, entry.plan = entry.plan, None
            if entry.replay:  # no event, because the outcome of this step was reported before
                replayed = entry.replay.pop(0)
                entry.pending_commit, entry.source_rank = replayed if plan.to_stage else None, None
                continue
            try:
                outcome = entry.session.advance(by_request.get(request_id, []))
            except Exception as error:
                self.abort(request_id, error)
                continue
            self._remember_source(request_id, entry, plan, outcome)
            events.append(RequestStep(request_id, plan, outcome))
            if outcome.finish_reason is not None:
                self._release(request_id, entry)
            else:
                entry.save_prefix = self.prefix_index.reserve(self.prefix_index.hash_prefixes(plan))
        return events + self.drain()

    def _confirm_prefixes(self) -> None:
        """Update the index: the workers have evicted, loaded and saved the prefixes of the current step's plans."""
        self.prefix_index.confirm_evictions(self._evictions)
        for entry in self._running.values():
            if entry.plan is not None:
                self.prefix_index.touch(entry.stored_prefix)
                if entry.save_prefix is not None:
                    self.prefix_index.insert(entry.save_prefix)
                    entry.save_prefix = None

    def _remember_source(
        self, request_id: int, entry: _RunningRequest, plan: Plan, outcome: StepOutcome
    ) -> None:
        """Set the pending commit and its source rank; None if all workers staged the same K/V or there is only one."""
        staged = ScheduledRequest(
            request_id, entry.slot, plan, (outcome.winner,), stored_prefix=entry.stored_prefix
        )
        entry.pending_commit = staged if plan.to_stage else None
        sent = plan.to_stage and not plan.stage_shared and self._num_workers > 1
        entry.source_rank = entry.rank_of_branch[outcome.winner] if sent else None

    def drain(self) -> list[RequestEvent]:
        """Return the events that occurred outside of `advance`, each once."""
        events, self._pending_events = self._pending_events, []
        return events
