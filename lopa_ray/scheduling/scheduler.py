"""Scheduler: the step loop of many requests, without I/O.

Requests join and leave between steps. One call plans a step for every request in flight and
spreads the branches over the workers; the other takes in the workers' reports:

    while scheduler.busy:
        step_plans = scheduler.plan(num_workers)
        reports = ...            # runner.step(plan), here or on actors
        for event in scheduler.advance(reports): ...

How many workers there are, and which of them evaluates a branch, never reaches a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from lopa_ray.config.config import Config
from lopa_ray.decoding.branch_budget import BranchBudget
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import ProtocolError, RequestCancelledError
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan, ScheduledRequest, StepPlan, StoredPrefix
from lopa_ray.protocol.report import BranchReport, StepReport
from lopa_ray.scheduling.prefix_index import PrefixIndex


@dataclass(slots=True)
class _InFlight:
    session: DecodeSession
    slot: int
    plan: Plan | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    """Worker that evaluates each branch of the current plan."""
    source: int | None = None
    """Worker that has what the next plan commits."""
    pending: ScheduledRequest | None = None
    """What staged that: the last plan and its winner, kept until a step that committed it has succeeded."""
    replay: list[ScheduledRequest] = field(default_factory=list)
    """What every worker must carry out before the session's next step, one after the other; see `Journal`."""
    prefix: tuple[StoredPrefix, ...] = ()
    """What the current plan takes from earlier requests."""
    store: StoredPrefix | None = None
    """What the next plan's commit leaves for later ones."""


class Scheduler:
    """Requests waiting and in flight; at most `max_num_seqs` of the latter."""

    def __init__(
        self, max_num_seqs: int, budget: BranchBudget | None = None, prefixes: PrefixIndex | None = None
    ) -> None:
        """Without a budget every request gets the branches that it asks for; without `prefixes` nothing is
        kept of its prompt."""
        self._budget = budget or BranchBudget()
        self.prefixes = prefixes or PrefixIndex(0)
        self.epoch = 0
        """Raised when the workers' membership changes (see `regroup`); older reports are rejected."""
        self._step = 0
        self._num_workers = 0
        self._free = list(range(max_num_seqs))
        self._waiting: dict[int, DecodeSession] = {}
        self._running: dict[int, _InFlight] = {}
        self._next_request = 0
        self._ended: list[RequestEvent] = []
        self._forget: tuple[int, ...] = ()
        """What the current step tells the workers to forget."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The scheduler that a configuration asks for."""
        prefixes = PrefixIndex.from_settings(config.model)
        return cls(config.model.max_num_seqs, BranchBudget(config.group.shared_branches), prefixes)

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
        """A request is in flight or waiting, or an event is still to be handed out."""
        return bool(self._running or self._waiting or self._ended)

    def submit(self, session: DecodeSession) -> int:
        """Queue a request; it joins at a step boundary as soon as a slot is free. Returns its id.

        Raises ProtocolError for a session that is finished already.
        """
        if session.finished:
            raise ProtocolError("a finished session cannot be submitted")
        self._next_request += 1
        self._waiting[self._next_request] = session
        return self._next_request

    def fail(self, request: int, error: Exception) -> None:
        """End a request with an error and free its slot. Unknown ids (ended already) are ignored."""
        running = self._running.get(request)
        if running is not None:
            self._leave(request, running)
        if running is not None or self._waiting.pop(request, None) is not None:
            self._ended.append(RequestFailure(request, error))

    def _leave(self, request: int, entry: _InFlight) -> None:
        del self._running[request]
        self._free.append(entry.slot)
        if entry.store is not None:
            self.prefixes.discard(entry.store)

    def cancel(self, request: int) -> None:
        """Free the request's slot at the next step."""
        self.fail(request, RequestCancelledError(f"request {request} was cancelled"))

    def fail_all(self, error: Exception) -> None:
        """End every request with the same error."""
        for request in [*self._running, *self._waiting]:
            self.fail(request, error)

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of the requests that have a slot, in the order in which they got it."""
        return tuple(self._running)

    @property
    def owners(self) -> dict[int, int]:
        """Slot → request, of those that have one."""
        return {entry.slot: request for request, entry in self._running.items()}

    def session_state(self, request: int) -> bytes:
        """See `DecodeSession.state`; of a request that has a slot."""
        return self._running[request].session.state()

    def pending(self) -> list[ScheduledRequest]:
        """Per commit that the next step orders: the work that staged its K/V, with the winner alone."""
        return [entry.pending for entry in self._running.values() if entry.pending is not None]

    def regroup(self, epoch: int, sources: Mapping[int, int]) -> None:
        """Enter an epoch, with other ranks. `sources`: per request, who has the K/V of its pending commit,
        unless every worker does."""
        self.epoch = epoch
        self.prefixes.clear()
        for request, entry in self._running.items():
            entry.source, entry.store = sources.get(request), None

    def plan(self, num_workers: int, only: int | None = None) -> list[StepPlan]:
        """One plan per worker for the next step; empty when nothing is in flight.

        Calling it again before `advance` plans the same step anew, under the current epoch. With
        `only` the step is that request's alone; the others wait.
        """
        while self._free and self._waiting:
            request = next(iter(self._waiting))
            session, slot = self._waiting.pop(request), self._free.pop(0)
            replay = [replace(work, request_id=request, slot=slot) for work in session.replay]
            self._running[request] = _InFlight(session, slot, replay=replay)
        for request, entry in list(self._running.items()):
            entry.plan, entry.prefix = None, ()
            if only not in (None, request):
                continue
            if entry.replay:
                entry.plan = entry.replay[0].plan
                continue
            try:
                branches = self._budget.branches(entry.session.settings, len(self._running))
                entry.plan = entry.session.plan(self.epoch, branches)
                entry.prefix = self.prefixes.match(self.prefixes.chain(entry.plan))
            except Exception as error:  # whatever is wrong with one request must not end the others
                self.fail(request, error)
        self._assign(num_workers)
        if all(entry.plan is None for entry in self._running.values()):
            return []
        self._forget = self.prefixes.to_forget
        return [
            StepPlan(self.epoch, self._step + 1, self._work(rank), self._forget)
            for rank in range(num_workers)
        ]

    def _assign(self, num_workers: int) -> None:
        """Each branch goes to the worker with the fewest rows so far; ties to the lowest rank."""
        self._num_workers = num_workers
        load = [0] * num_workers
        for entry in self._running.values():
            plan = entry.plan
            if plan is None or entry.replay:
                continue
            entry.ranks = {}
            for index, branch in enumerate(plan.branches):
                rank = load.index(min(load))
                load[rank] += branch.stop - plan.start - sum(len(part.span) for part in entry.prefix)
                entry.ranks[index] = rank

    def _work(self, rank: int) -> tuple[ScheduledRequest, ...]:
        """Every worker gets every plan: commits and cuts of the cache concern all of them."""
        return tuple(
            replace(entry.replay[0], source=entry.source)
            if entry.replay
            else ScheduledRequest(
                request,
                entry.slot,
                entry.plan,
                tuple(b for b, r in entry.ranks.items() if r == rank),
                entry.source,
                entry.prefix,
                entry.store,
            )
            for request, entry in self._running.items()
            if entry.plan is not None
        )

    def advance(self, step_reports: Sequence[StepReport]) -> list[RequestEvent]:
        """Take in the reports of all workers. A request that ended meanwhile is passed over.

        Without reports nothing was planned, and only what arose outside of steps is handed out.

        Raises ProtocolError, and changes nothing, for a report of another step or epoch.
        """
        if not step_reports:
            return self.drain()
        for report in step_reports:
            if (report.epoch, report.step) != (self.epoch, self._step + 1):
                raise ProtocolError(
                    f"got a report of epoch {report.epoch}, step {report.step}; "
                    f"this is epoch {self.epoch}, step {self._step + 1}"
                )
        by_request: dict[int, list[BranchReport]] = {}
        for report in step_reports:
            for request, branch_report in report.reports:
                by_request.setdefault(request, []).append(branch_report)
        self._step += 1
        self._settle_prefixes()
        events: list[RequestEvent] = []
        for request, entry in list(self._running.items()):
            if entry.plan is None:
                continue
            plan, entry.plan = entry.plan, None
            if entry.replay:  # nobody is told: this was decided before
                done = entry.replay.pop(0)
                entry.pending, entry.source = done if plan.to_stage else None, None
                continue
            try:
                outcome = entry.session.advance(by_request.get(request, []))
            except Exception as error:
                self.fail(request, error)
                continue
            self._remember_source(request, entry, plan, outcome)
            events.append(RequestStep(request, plan, outcome))
            if outcome.finish_reason is not None:
                self._leave(request, entry)
            else:
                entry.store = self.prefixes.reserve(self.prefixes.chain(plan))
        return events + self.drain()

    def _settle_prefixes(self) -> None:
        """The workers have done what the current step told them."""
        self.prefixes.forgotten(self._forget)
        for entry in self._running.values():
            if entry.plan is not None:
                self.prefixes.took(entry.prefix)
                if entry.store is not None:
                    self.prefixes.stored(entry.store)
                    entry.store = None

    def _remember_source(self, request: int, entry: _InFlight, plan: Plan, outcome: StepOutcome) -> None:
        """Whom the others receive from; nobody, where everyone staged the same or there are no others."""
        staged = ScheduledRequest(request, entry.slot, plan, (outcome.winner,), stored_prefix=entry.prefix)
        entry.pending = staged if plan.to_stage else None
        sent = plan.to_stage and not plan.stage_shared and self._num_workers > 1
        entry.source = entry.ranks[outcome.winner] if sent else None

    def drain(self) -> list[RequestEvent]:
        """Events that arose outside `advance`."""
        ended, self._ended = self._ended, []
        return ended
