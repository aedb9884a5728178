"""A group without Ray whose workers come and go in the middle of steps, and which is lost whole at times."""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from collections.abc import Mapping

import torch
from torch import Tensor

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import RequestCancelledError, TransferError
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.scheduling.journal import Journal
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Scheduler
from support.decode_kinds import new_request
from support.in_process_group import (
    InProcessGroup,
    InProcessTransfer,
    ReportBytes,
    reference_reports,
    report_bytes,
)

MAX_LEN = 72


class BrokenTransfer(InProcessTransfer):
    """A peer dies while it sends."""

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        for source, payload in payloads.items():
            if source != self.rank:
                payload[: len(payload) // 2] = 0
                raise TransferError("a peer died")


class ChaosGroup(InProcessGroup):
    """Loses workers at random in the middle of steps, and takes new ones in at random."""

    def __init__(
        self, model: MaskPredictor, draw: random.Random, workers: int, stored: int, overlap: bool
    ) -> None:
        super().__init__(model, workers, max_model_len=MAX_LEN)
        self.model = model
        self.stored = stored
        self.overlap = overlap
        self.scheduler = self.new_scheduler()
        self.in_flight: deque[tuple[list[StepPlan], list[LaunchedStep]]] = deque()
        """Plans and what workers have begun of them, the oldest first."""
        self.dead: set[int] = set()
        """Ranks of workers that have died, which shows in the reports."""
        self.draw = draw
        self.counts: Counter[str] = Counter()
        self.journals: dict[int, Journal] = {}

    def new_scheduler(self) -> Scheduler:
        """The scheduler of a group that begins."""
        return Scheduler(
            4 if self.overlap else 3, prefix_index=PrefixIndex(self.stored), overlap=self.overlap
        )

    def new_runner(self) -> BranchRunner:
        """A worker that begins."""
        return BranchRunner(self.model, max_num_seqs=4, max_model_len=MAX_LEN)

    def submit(self, session: RequestSession) -> int:
        """Queue a request, and begin its journal."""
        # As over a process border: the journal's does not change.
        request = self.scheduler.submit(pickle.loads(pickle.dumps(session)))
        self.journals[request] = Journal(session)
        return request

    def note(self, event: RequestStep) -> None:
        """What the receiver of events does."""
        if event.outcome.finish_reason:
            del self.journals[event.request_key]
        else:
            state = self.scheduler.session_state(event.request_key)
            self.journals[event.request_key].record(event.plan, event.outcome, state)

    def begin_anew(self, workers: int) -> dict[int, int]:
        """Lose everything but the journals; returns the requests' numbers, before and after."""
        self.counts["groups lost"] += 1
        self.runners = [self.new_runner() for _ in range(workers)]
        self.in_flight.clear()
        self.dead.clear()
        self.counts["prefixes"] += self.scheduler.prefix_index.hit_requests
        self.scheduler = self.new_scheduler()
        numbers = {}
        for request, journal in sorted(self.journals.items()):
            # As over a process border.
            session = pickle.loads(pickle.dumps(journal.restored_session()))
            self.counts["replayed"] += len(session.replay)
            numbers[request] = self.scheduler.submit(session)
        self.journals = {number: self.journals[request] for request, number in numbers.items()}
        return numbers

    def send(self, plans: list[StepPlan], dying: set[int]) -> None:
        """Have the workers begin a step. If some die in it, some survivors have carried out all of it, some nothing,
        and none knows which."""
        sent, gone = self.payloads(plans), set(self.dead)
        self.dead |= dying
        self.counts["lost"] += len(dying)
        launched = []
        for rank, (runner, plan) in enumerate(zip(self.runners, plans, strict=True)):
            if rank not in self.dead:
                try:
                    launched.append(runner.launch(plan, self._transfer(rank, sent, gone)))
                except TransferError:
                    self.counts["broken off"] += 1
        self.in_flight.append((plans, launched))

    def gather(self) -> tuple[list[StepPlan], list[StepReport] | None]:
        """The oldest step, and its reports; None if a worker has died in it. Then all steps in flight are lost."""
        plans, launched = self.in_flight.popleft()
        if len(launched) == len(plans):
            return plans, [step.report() for step in launched]
        self.in_flight.clear()
        return plans, None

    def _transfer(self, rank: int, sent: dict[int, Tensor], gone: set[int]) -> InProcessTransfer:
        broken_off = (self.dead and self.draw.random() < 0.5) or gone & sent.keys()
        return (BrokenTransfer if broken_off else InProcessTransfer)(rank, sent, self.sources)

    def change(self, lost: set[int], joining: int) -> None:
        """Go on without some workers, and with new ones, in another order."""
        survivors = [runner for rank, runner in enumerate(self.runners) if rank not in lost]
        self.draw.shuffle(survivors)
        for _ in range(joining):
            newcomer = self.new_runner()
            newcomer.import_slots(survivors[0].export_slots(self.scheduler.request_by_slot))
            survivors.append(newcomer)
        self.dead.clear()
        restage, source_ranks = self.regroup(survivors)
        for requests in restage.values():
            phases = "two phases" if requests[0].branch_indices else "one phase"
            self.counts[f"staged again, {phases}"] += 1
        self.counts["moved"] += any(source_ranks.values())


def decode_with_losses(
    model: MaskPredictor,
    seed: int,
    kinds: list[str],
    requests: int,
    stored: int = 0,
    overlap: bool = False,
) -> Counter[str]:
    """Decode with losses and newcomers at random; compare each report with the same request alone.

    `stored`: positions that workers keep of prompts; then prompts begin alike. `overlap`: two steps in flight."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    group = ChaosGroup(model, draw, draw.randint(1, 4), stored, overlap)
    expected: dict[int, list[list[ReportBytes]]] = {}
    canvases: dict[int, list[int]] = {}
    for number in range(requests):
        alike = [8] * 9 + [draw.randrange(3)] * 5 if stored else []
        prompt, kind = [*alike, 5, 6, number % 50 if not stored else 7], draw.choice(kinds)
        alone, session = (new_request(kind, prompt, group.runners[0].vocabulary) for _ in range(2))
        steps, request = reference_reports(model, alone), group.submit(session)
        expected[request] = steps
        canvases[request] = alone.generated if isinstance(alone, DecodeSession) else []
    unpublished: list[RequestStep] = []

    def publish() -> None:
        """Events are sent when the next step is planned, as `Master` does."""
        while unpublished:
            event = unpublished.pop(0)
            if event.request_key not in group.journals:
                continue  # it was cancelled
            group.note(event)
            if event.outcome.finish_reason:
                assert list(event.outcome.canvas) == canvases.pop(event.request_key)

    def dying() -> set[int]:
        """Ranks of the workers that die in a step; one is left at least."""
        alive = [rank for rank in range(len(group.runners)) if rank not in group.dead]
        if len(alive) == 1 or draw.random() >= 0.3:
            return set()
        return set(draw.sample(alive, draw.randint(1, len(alive) - 1)))

    while group.scheduler.busy:
        if draw.random() < 0.04:
            unpublished.clear()  # their master died before it sent them
            numbers = group.begin_anew(draw.randint(1, 4))
            expected = {numbers[request]: steps for request, steps in expected.items() if request in numbers}
            canvases = {numbers[request]: canvas for request, canvas in canvases.items()}
        size = len(group.runners)
        if not group.in_flight and draw.random() < 0.15:
            group.change(set(draw.sample(range(size), draw.randint(0, size - 1))), draw.randint(0, 2))
        if not group.in_flight and draw.random() < 0.1:
            group.scheduler.poison.record_error([*group.scheduler.request_by_slot.values()])
        if not group.in_flight:
            plans = group.scheduler.plan(len(group.runners))
            if draw.random() < 0.1 and group.scheduler.split_steps():
                group.counts["split"] += 1
                plans = group.scheduler.plan(len(group.runners))
            if plans:
                group.send(plans, dying())
        if group.in_flight and (beside := group.scheduler.plan_overlapped(len(group.runners))):
            group.counts["overlapped"] += 1
            group.send(beside, dying())
        if overlap and draw.random() < 0.02 and group.scheduler.request_by_slot:
            cancelled = draw.choice([*group.scheduler.request_by_slot.values()])
            group.scheduler.cancel(cancelled)
            group.counts["cancelled"] += 1
            del canvases[cancelled], group.journals[cancelled]
        publish()
        plans, reports = group.gather() if group.in_flight else ([], [])
        whole = not group.in_flight and (not plans or len(plans[0].requests) == group.scheduler.in_flight)
        evaluated = sum(len(scheduled.branch_indices) for plan in plans for scheduled in plan.requests)
        planned = sum(len(scheduled.plan.branches) for scheduled in plans[0].requests) if plans else 0
        group.counts["parts"] += evaluated < planned
        if reports is None:
            group.change(set(group.dead), draw.randint(0, 2) if len(group.runners) < 4 else 0)
            continue
        replayed = (
            {scheduled.request_id for scheduled in plans[0].requests if not scheduled.plan.branches[0].scored}
            if plans
            else {}
        )
        for step_report in reports:
            for request, report in step_report.reports:
                assert (
                    request in replayed
                    or report_bytes(report) == expected[request][report.step - 1][report.branch]
                )
        for event in group.scheduler.advance(reports):
            if isinstance(event, RequestStep):
                unpublished.append(event)
            else:
                assert isinstance(event.error, RequestCancelledError)
        if not group.scheduler.busy:
            publish()
        if whole:  # else commits of other requests, broken off before, may still be pending
            group.agreed_checksums()
    assert not canvases
    group.counts["prefixes"] += group.scheduler.prefix_index.hit_requests
    return group.counts
