"""Workers that come and go in the middle of steps, and whole groups, without Ray: the bits of every report stay
the same."""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.renoising import RenoisingSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import RequestCancelledError, TransferError
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.scheduling.journal import Journal
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.recovery import recover
from lopa_ray.scheduling.scheduler import Scheduler
from support.in_process_group import (
    InProcessGroup,
    InProcessTransfer,
    ReportBytes,
    reference_reports,
    report_bytes,
)
from support.marks import also_long, also_slow
from support.tiny_model import load_canvas_model, load_tiny_model

MODEL = load_tiny_model()

EXPERTS = ("sdar-moe-tiny-3l", "llada2-tiny-3l")
"""Models of block diffusion, whose blocks `blocks_in_flight` counts from position 0 as they do."""

MAX_LEN = 72

FULL = {"max_new_tokens": 24, "block_size": 4, "confidence_threshold": 0.6, "stop_at_eos": False}

GIVEN = ({"token_ids": [5]}, {"hole": 5, "token_ids": [9, 8, 7, 6, 5, 4]}, {"hole": 3, "token_ids": [3, 2]})
"""Parts of an answer, one of which has blocks of its own."""

KINDS: dict[str, GenerationSettings] = {
    "two_phase": LopaSettings(**FULL, num_branches=4),
    "single_phase": LopaSettings(**FULL, num_branches=3, window_attention="block_causal"),
    "two_phase_causal": D2FSettings(
        **FULL, window_attention="block_causal", commit_protocol="two_phase", temperature=0.8, seed=4
    ),
    "blocks_in_flight": LopaSettings(
        **FULL, num_branches=3, window_attention="block_causal", block_origin="start"
    ),
    "dual_cache": FastDllmSettings(max_new_tokens=20, block_size=8, confidence_threshold=0.6),
    "prefix_cache": FastDllmSettings(max_new_tokens=20, block_size=8, cache="prefix", num_branches=3),
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=20, num_branches=3),
    "editing": EditingSettings(
        max_new_tokens=24,
        block_size=8,
        confidence_threshold=0.6,
        editing_threshold=0.2,
        max_post_steps=3,
        num_branches=3,
        stop_at_eos=False,
    ),
    "multi_block": MultiBlockSettings(**FULL, max_blocks=3, num_branches=3),
    "multi_block_edits": MultiBlockSettings(
        **FULL | {"block_size": 8}, max_blocks=3, editing_threshold=0.2, max_post_steps=3, num_branches=3
    ),
    "dmax": DMaxSettings(**FULL | {"block_size": 8}, num_branches=3),
    "nemotron": NemotronSettings(**FULL | {"block_size": 8}, num_branches=3),
    "nemotron_full_context": NemotronSettings(**FULL, causal_context=False, num_branches=3),
    "self_speculation": SelfSpeculationSettings(
        max_new_tokens=16, block_size=4, confidence_threshold=0.3, temperature=0.9, seed=4
    ),
    "sub_blocks": BlockDiffusionSettings(
        max_new_tokens=20, block_size=8, sub_block_size=4, sub_block_cache=True, num_branches=3
    ),
    "dual_cache_of_one": FastDllmSettings(max_new_tokens=9, block_size=1),
    "no_cache": FastDllmSettings(max_new_tokens=20, block_size=8, cache="none", num_branches=3),
    "settled": LopaSettings(**FULL, num_branches=3, settled=1.0),
    "auto_budget": LopaSettings(**FULL, num_branches="auto", max_branches=8),
    "verified": LopaSettings(**FULL, num_branches=6, lookahead="verified"),
    "given": LopaSettings(**FULL | {"max_new_tokens": 36}, num_branches=3, given_parts=GIVEN),
    "given_dual_cache": FastDllmSettings(
        max_new_tokens=24, block_size=4, num_branches=2, confidence_threshold=0.6, given_parts=GIVEN
    ),
    "given_verified": LopaSettings(**FULL, num_branches=6, lookahead="verified", given_parts=GIVEN),
    "verified_causal": LopaSettings(
        **FULL,
        num_branches=5,
        lookahead="verified",
        window_attention="block_causal",
        commit_protocol="two_phase",
    ),
    "verified_relaxed": LopaSettings(
        **FULL, num_branches=6, lookahead="verified", acceptance=0.2, settled=1.0
    ),
    "verified_blocks": BlockDiffusionSettings(max_new_tokens=20, num_branches=4, lookahead="verified"),
    "verified_cache": FastDllmSettings(
        max_new_tokens=20, block_size=8, num_branches=4, confidence_threshold=0.6, lookahead="verified"
    ),
}


CANVASES: dict[str, GenerationSettings] = {
    "canvases": RenoisingSettings(max_new_tokens=32, max_denoising_steps=7, entropy_bound=1.0, seed=4),
    "early_stops": RenoisingSettings(
        max_new_tokens=48, max_denoising_steps=9, entropy_bound=2.0, confidence_threshold=0.3, ignore_eos=True
    ),
}
"""Of a model without a mask token, whose steps are each conditioned on the one before."""

OFTEN = ("two_phase", "single_phase", "prefix_cache", "block_diffusion", "editing", "verified", "given")
"""Kinds that `make test` has; `.ci/run` has all."""

ALL_KINDS = {**KINDS, **CANVASES}


class BrokenTransfer(InProcessTransfer):
    """A peer dies while it sends."""

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        for source, payload in payloads.items():
            if source != self.rank:
                payload[: len(payload) // 2] = 0
                raise TransferError("a peer died")


class Chaos(InProcessGroup):
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

    def submit(self, session: DecodeSession) -> int:
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
        recovery = self.regroup(survivors)
        for requests in recovery.restage.values():
            phases = "two phases" if requests[0].branch_indices else "one phase"
            self.counts[f"staged again, {phases}"] += 1
        self.counts["moved"] += any(recovery.source_ranks.values())


def run(
    seed: int,
    kinds: list[str],
    requests: int,
    stored: int = 0,
    model: MaskPredictor = MODEL,
    overlap: bool = False,
) -> Counter[str]:
    """Decode with losses and newcomers at random; compare each report with the same request alone.

    `stored`: positions that workers keep of prompts; then prompts begin alike. `overlap`: two steps in flight."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    group = Chaos(model, draw, draw.randint(1, 4), stored, overlap)
    expected: dict[int, list[list[ReportBytes]]] = {}
    canvases: dict[int, list[int]] = {}
    for number in range(requests):
        alike = [8] * 9 + [draw.randrange(3)] * 5 if stored else []
        prompt, settings = [*alike, 5, 6, number % 50 if not stored else 7], ALL_KINDS[draw.choice(kinds)]
        alone = group.create_session(prompt, settings)
        steps = reference_reports(model, alone)
        request = group.submit(group.create_session(prompt, settings))
        expected[request], canvases[request] = steps, alone.generated
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
            group.scheduler.suspects.record_error(group.scheduler.running_ids)
        if not group.in_flight:
            plans = group.scheduler.plan(len(group.runners))
            if draw.random() < 0.1 and group.scheduler.split_steps():
                group.counts["split"] += 1
                plans = group.scheduler.plan(len(group.runners))
            if plans:
                group.send(plans, dying())
        if group.in_flight and (beside := group.scheduler.plan_beside(len(group.runners))):
            group.counts["overlapped"] += 1
            group.send(beside, dying())
        if overlap and draw.random() < 0.02 and group.scheduler.running_ids:
            cancelled = draw.choice(group.scheduler.running_ids)
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


@pytest.mark.parametrize("kind", ["two_phase", "single_phase", "dual_cache", "block_diffusion"])
def test_lost_and_new_workers_change_no_bit_of_packed_attention(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa_ray.execution.runner.DEFAULT_ATTENTION", PackedAttention())
    counts = run(1, [kind], 20)
    assert counts["lost"] > 3 and counts["replayed"]


@pytest.mark.parametrize("kind", [*OFTEN, *also_slow(*(kind for kind in KINDS if kind not in OFTEN))])
def test_lost_and_new_workers_change_no_bit(kind: str) -> None:
    counts = run(1, [kind], 40)
    assert counts["split"] > 1 and (counts["parts"] > 2 or "dual" in kind)
    # Nothing is moved where every worker stages its own.
    assert counts["lost"] > 10 and counts["groups lost"] > 2
    assert counts["moved"] > 2 or kind in (
        "single_phase",
        "block_diffusion",
        "editing",
        "multi_block",
        "multi_block_edits",
        "dmax",
        "nemotron",
        "nemotron_full_context",
        "self_speculation",
        "sub_blocks",
        "no_cache",
        "blocks_in_flight",
    )
    assert bool(counts["replayed"]) == (kind != "no_cache")


@pytest.mark.parametrize("kind", [*OFTEN, *also_long(*(kind for kind in KINDS if kind not in OFTEN))])
def test_two_steps_in_flight_change_no_bit_whoever_is_lost(kind: str) -> None:
    counts = run(1, [kind], 30, overlap=True)
    assert min(counts[key] for key in ("overlapped", "lost", "cancelled")) > 0


@pytest.mark.parametrize("seed", [1, *also_long(2, 3, 4, 5, 6, 7, 8, 9)])
@pytest.mark.parametrize("stored", [0, 40])
def test_two_steps_in_flight_change_no_bit_of_mixtures(seed: int, stored: int) -> None:
    counts = run(seed, [*KINDS], 30, stored, overlap=True)
    assert min(counts[key] for key in ("overlapped", "lost", "cancelled")) > 0


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("stored", [0, 40])
def test_blocks_in_flight_of_experts_change_no_bit_whoever_is_lost(name: str, stored: int) -> None:
    counts = run(2, ["blocks_in_flight"], 30, stored, load_tiny_model(name))
    assert min(counts[key] for key in ("lost", "groups lost", "replayed")) > 1
    assert (counts["prefixes"] > 1) == (stored > 0)


@pytest.mark.parametrize("stored", [*also_slow(0), *also_long(40)])
def test_self_conditioning_changes_no_bit_whoever_is_lost(
    stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals reach other workers by commits; newcomers copy them; new groups compute the calls on a canvas again."""
    monkeypatch.setattr("lopa_ray.decoding.decoders.renoising.ENCODED_ROWS", 8)
    counts = run(3, [*CANVASES], 25, stored, load_canvas_model())
    assert min(counts[key] for key in ("lost", "groups lost", "replayed", "moved")) > 2
    assert counts["staged again, two phases"] > 2 and counts["staged again, one phase"] > 2
    assert (counts["prefixes"] > 1) == (stored > 0)


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (7, ["single_phase", "two_phase_causal"]),
        *also_slow((7, ["block_diffusion", "sub_blocks"]), (7, ["multi_block", "multi_block_edits"])),
        *also_long((7, ["dmax"]), (9, ["nemotron", "nemotron_full_context", "self_speculation"])),
    ],
)
def test_stored_prefixes_change_no_bit_whoever_is_lost(seed: int, kinds: list[str]) -> None:
    counts = run(seed, kinds, 60, stored=40)
    assert min(counts[key] for key in ("lost", "groups lost", "prefixes")) > 2


@pytest.mark.long
def test_stored_prefixes_of_packed_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa_ray.execution.runner.DEFAULT_ATTENTION", PackedAttention())
    counts = run(7, ["single_phase", "two_phase_causal", "block_diffusion", "dmax"], 60, stored=40)
    assert min(counts[key] for key in ("lost", "groups lost", "prefixes")) > 2


def test_every_way_to_recover_is_taken() -> None:
    counts = sum((run(seed, [*KINDS], 20) for seed in range(3)), Counter())
    assert (
        min(counts[key] for key in ("broken off", "staged again, two phases", "staged again, one phase")) > 2
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 60))
def test_lost_and_new_workers_change_no_bit_in_many_mixtures(seed: int) -> None:
    assert run(seed, [*KINDS], 30)["lost"] > 5


def scheduled(request: int, shared: bool) -> ScheduledRequest:
    group = InProcessGroup(MODEL, 1)
    kind = "single_phase" if shared else "two_phase"
    plan = group.create_session([1, 2], KINDS[kind]).plan()
    return ScheduledRequest(request, 0, replace(plan, stage_shared=shared), (0,))


def test_a_holder_becomes_the_source_and_nobody_is_named_where_there_is_one_worker() -> None:
    pending_commits = [
        scheduled(1, shared=False),
        scheduled(2, shared=False),
        scheduled(3, shared=True),
    ]
    recovery = recover(pending_commits, [(False, False, True), (True, False, False)])
    assert recovery.source_ranks == {1: 1, 2: 1}
    assert [(w.request_id, w.branch_indices) for w in recovery.restage[1]] == [(2, (0,)), (3, ())]
    assert list(recovery.restage) == [1]
    assert recover(pending_commits, [(True, True, True)]).source_ranks == {}
