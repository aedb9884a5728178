"""Several workers in one process: what the actors do, step by step and without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.events import RequestEvent
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import BranchReport, StepReport
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.recovery import Restage, change_epoch
from lopa_ray.scheduling.scheduler import Scheduler

ReportBytes = tuple[bytes, ...]


def report_bytes(report: BranchReport) -> ReportBytes:
    """All numbers of a report, to compare bit for bit."""
    arrays = (report.positions, report.tokens, report.probabilities, report.logprobs, report.scores)
    return tuple(
        array.tobytes() for array in (*arrays, report.top_tokens, report.top_logprobs, report.memory)
    )


def reference_reports(model: MaskPredictor, session: RequestSession) -> list[list[ReportBytes]]:
    """Decode a session on a runner of its own; returns the bytes of each step's reports."""
    runner = BranchRunner(model, max_num_seqs=1, max_model_len=session.max_len + model.config.canvas_length)
    steps = []
    while not session.finished:
        plan = session.plan()
        scheduled = ScheduledRequest(1, 0, plan, tuple(range(len(plan.branches))))
        reports = [report for _, report in runner.execute(StepPlan(0, plan.step, (scheduled,))).reports]
        steps.append([report_bytes(report) for report in reports])
        session.advance(reports)
    return steps


@dataclass
class InProcessTransfer:
    """A `PayloadTransfer` of payloads that lie in this process."""

    rank: int
    sent: Mapping[int, Tensor]
    """By source."""
    sources: set[int]
    """Ranks whose payloads were received are added."""

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        assert list(payloads) == list(self.sent)
        for source, payload in payloads.items():
            if self.rank == source:
                assert torch.equal(payload, self.sent[source])
            else:
                payload.copy_(self.sent[source])
                self.sources.add(source)


class InProcessGroup:
    """Runners that share a scheduler, with K/V handed over in this process."""

    def __init__(
        self,
        model: MaskPredictor,
        workers: int,
        *,
        max_num_seqs: int = 4,
        max_model_len: int = 96,
        prefix_index: PrefixIndex | None = None,
    ) -> None:
        self.runners = [
            BranchRunner(model, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
            for _ in range(workers)
        ]
        self.scheduler = Scheduler(max_num_seqs, prefix_index=prefix_index)
        self.epoch = self.scheduler.epoch
        self.sources: set[int] = set()
        """Ranks that have sent K/V."""

    def create_session(self, prompt: Sequence[int], settings: object) -> DecodeSession:
        """A session for the group's model."""
        return new_session(prompt, settings, self.runners[0].vocabulary)

    def evaluate(self, plans: list[StepPlan], skip: Sequence[int] = ()) -> list[StepReport]:
        """All workers' reports, but for those of the ranks in `skip`: they were lost before the step."""
        if not plans:
            return []
        sent = self.payloads(plans)
        return [
            runner.execute(plan, InProcessTransfer(rank, sent, self.sources))
            for rank, (runner, plan) in enumerate(zip(self.runners, plans, strict=True))
            if rank not in skip
        ]

    def payloads(self, plans: list[StepPlan]) -> dict[int, Tensor]:
        """What the step's commits have sources send, by rank: flat [values] in the cache's dtype each."""
        return {
            source: self.runners[source].slots.payload(requests)
            for source, requests in plans[0].commits_by_source.items()
        }

    def step(self) -> list[RequestEvent]:
        """One step of all requests in flight."""
        plans = self.scheduler.plan(len(self.runners))
        return self.scheduler.advance(self.evaluate(plans))

    def regroup(self, runners: list[BranchRunner]) -> tuple[Restage, dict[int, int]]:
        """Enter the next epoch with these workers."""
        self.runners = runners
        return asyncio.run(change_epoch(self.scheduler, self))

    async def join_epoch(
        self, request_by_slot: Mapping[int, int], pending: Sequence[ScheduledRequest]
    ) -> list[tuple[bool, ...]]:
        """See `EpochWorkers`."""
        self.epoch = self.scheduler.epoch + 1
        return [runner.reconcile(request_by_slot, pending) for runner in self.runners]

    async def restage(self, lost: Mapping[int, tuple[ScheduledRequest, ...]]) -> None:
        """See `EpochWorkers`."""
        for rank, requests in lost.items():
            self.runners[rank].execute(StepPlan(self.epoch, 0, requests))

    def agreed_checksums(self) -> list[SlotChecksum]:
        """The checksum of every slot, which is the same on all workers."""
        first, *others = [runner.checksums() for runner in self.runners]
        assert all(other == first for other in others)
        return first
