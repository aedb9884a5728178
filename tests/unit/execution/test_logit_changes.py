"""Penalties and biases: a worker's scores against the definition, and what becomes of the tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution import lm_head
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.step_report import BranchReport
from support.changed_logits import changed_logits
from support.in_process_group import InProcessGroup
from support.tiny_model import load_tiny_model

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("one_thread")]

PROMPT = [*range(20, 50), 7, 7, 9]

STRONG: dict[str, Any] = {
    "repetition_penalty": 1.7,
    "frequency_penalty": 0.9,
    "presence_penalty": -0.4,
    "logit_bias": {7: 3.0, 9: -100.0, 30: 0.7, 100: 1.5},
}

DECODERS: dict[str, GenerationSettings] = {
    "lopa": LopaSettings(
        max_new_tokens=24, num_branches=4, block_size=8, confidence_threshold=0.5, top_logprobs=3, **STRONG
    ),
    "vanilla": VanillaSettings(max_new_tokens=10, num_branches=3, **STRONG),
    "fast_dllm": FastDllmSettings(max_new_tokens=12, block_size=6, cache="dual", num_branches=3, **STRONG),
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=12, num_branches=3, **STRONG),
    "frequency alone": LopaSettings(max_new_tokens=16, num_branches=3, block_size=8, frequency_penalty=-1.0),
    "repetition alone": LopaSettings(max_new_tokens=16, num_branches=3, block_size=8, repetition_penalty=0.5),
}


def assert_scores(
    report: BranchReport, logits: Tensor, answer: list[int], settings: GenerationSettings, plan: Plan
) -> None:
    """Compare what a worker says of a branch with its logits [rows, V], by the definition."""
    precision = plan.sampling_params.precision
    vocabulary = load_vocabulary()
    plain = logits.double() if precision == "float64" else logits.float()
    for at, row in enumerate(plain):
        changed = changed_logits(row, PROMPT, answer, settings, vocabulary)
        changed = changed.half().float() if precision == "float16" else changed
        probabilities = changed.softmax(-1)
        token = report.tokens[at].item()
        left = probabilities.clone()
        left[vocabulary.mask_token_id] = 0.0
        assert probabilities[token].item() == pytest.approx(left.max().item(), abs=1e-7)
        assert report.probabilities[at] == pytest.approx(probabilities[token].item(), abs=1e-6)
        assert report.logprobs[at] == pytest.approx(row.log_softmax(-1)[token].item(), abs=1e-5)
        if report.top_tokens.size:
            best = row.log_softmax(-1).topk(report.top_tokens.shape[1]).values
            assert report.top_logprobs[at].tolist() == pytest.approx(best.tolist(), abs=1e-5)


def load_vocabulary() -> Any:
    return BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=1).vocabulary


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("name", DECODERS)
def test_scores_are_those_of_the_changed_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that are cached, forks with fills of their own, and every decoder's positions."""
    settings, seen = DECODERS[name], []
    score_rows = lm_head.score_rows

    def noted(logits: Tensor, *others: Any) -> Any:
        seen.append(logits.clone())
        return score_rows(logits, *others)

    monkeypatch.setattr(lm_head, "score_rows", noted)
    runner = BranchRunner(load_tiny_model(), max_num_seqs=1, max_model_len=80)
    session = new_session(PROMPT, settings, runner.vocabulary)
    mask, repeated, forked = runner.vocabulary.mask_token_id, 0, 0
    while not session.finished:
        plan, canvas = session.plan(), [*session.generated]
        scheduled = ScheduledRequest(1, 0, plan, tuple(range(len(plan.branches))))
        seen.clear()
        reports = [report for _, report in runner.execute(StepPlan(0, plan.step, (scheduled,))).reports]
        rows = iter(torch.cat(seen) if seen else torch.zeros(0))
        for branch, report in zip(plan.branches, reports, strict=True):
            answer = canvas + [mask] * (settings.max_new_tokens - len(canvas))
            for position, token in branch.fills:
                assert answer[position - len(PROMPT)] == mask
                answer[position - len(PROMPT)] = token
                forked += 1
            if len(report.positions):
                logits = torch.stack([next(rows) for _ in report.positions])
                assert_scores(report, logits, answer, settings, plan)
            repeated += max(Counter(token for token in answer if token != mask).values(), default=0) > 1
        session.advance(reports)
    assert forked and (repeated or name == "repetition alone")


def decoded(settings: GenerationSettings) -> list[int]:
    """The answer of two workers in this process."""
    group = InProcessGroup(load_tiny_model("dream-tiny-4l"), 2, max_model_len=120)
    group.scheduler.submit(group.create_session(PROMPT, settings))
    while group.scheduler.busy:
        (event,) = group.step()
    return list(event.outcome.canvas)


def new_runner() -> BranchRunner:
    return BranchRunner(load_tiny_model("dream-tiny-4l"), max_num_seqs=2, max_model_len=120)


@pytest.mark.parametrize("name", ["lopa", "vanilla", "fast_dllm"])
def test_a_bias_of_100_forces_and_one_of_minus_100_bans(name: str) -> None:
    plain = DECODERS[name].replace(
        repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias={}
    )
    before = decoded(plain)
    forced = decoded(plain.replace(logit_bias={55: 100.0}))
    assert forced == [55] * plain.max_new_tokens != before
    banned = dict.fromkeys(before, -100.0)
    after = decoded(plain.replace(logit_bias=banned))
    assert not {*after} & banned.keys()


def test_a_constraint_wins_over_a_bias() -> None:
    with LocalEngine.from_pretrained("demo") as engine:
        assert engine.tokenizer is not None
        forced = dict.fromkeys(engine.tokenizer.encode("7 boxes"), 100.0)
        settings = LopaSettings(
            max_new_tokens=12, guided_regex="[ab]{4,8}", logit_bias=forced, repetition_penalty=2.0
        )
        bound = engine.generate("x", settings).text
        free = engine.generate("x", settings.replace(guided_regex=None)).text
    assert 4 <= len(bound) <= 8
    assert not {*bound} - {*"ab"}
    assert free and not {*free} - {*"7 boxes"}


def test_rows_without_changes_are_scored_as_ever() -> None:
    """In the same step as rows with changes, in a group of their own, with the same bits."""
    runner = new_runner()
    settings = [
        LopaSettings(max_new_tokens=8, block_size=8, num_branches=1, **changes) for changes in ({}, STRONG)
    ]
    plans = [new_session(PROMPT, own, runner.vocabulary).plan() for own in settings]
    requests = tuple(ScheduledRequest(at, at, plan, (0,)) for at, plan in enumerate(plans))
    assert plans[0].sampling_params == plans[1].sampling_params == SamplingParams()
    together = dict(runner.execute(StepPlan(0, 1, requests)).reports)
    for request in requests:
        ((_, alone),) = new_runner().execute(StepPlan(0, 1, (request,))).reports
        assert together[request.request_id].scores.tobytes() == alone.scores.tobytes()
        assert together[request.request_id].tokens.tolist() == alone.tokens.tolist()
    assert together[0].tokens.tolist() != together[1].tokens.tolist()
