"""What Fast-dLLM does at each step with each of its caches: two blocks of two positions, threshold 0.7."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lopa_ray.decoding.decoders.fast_dllm import FastDllmSession, FastDllmSettings
from lopa_ray.protocol.outcome import BlockView, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, Spans
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_model import VOCABULARY
from support.step_tables import M, Scores, Step, check_steps, decided

LLADA = SamplingParams(precision="float64", confidence_temperature=1.0)
PROMPT = BlockView(0, 2, "in_cache", 0, True)


def whole(scored: range, *, to_stage: Spans = ()) -> tuple[Branch]:
    return (Branch(((6, 6),), scored, to_stage=to_stage),)


"""All rows of six, each of which attends to all six."""

SCORES: list[Scores] = [
    {2: (10, 0.75), 3: (11, 0.5)},  # one reaches the threshold
    {3: (11, 0.5)},  # none does, so the best is filled
    {4: (12, 0.75), 5: (13, 0.5)},
    {5: (13, 0.25)},
]

OUTCOMES = [
    StepOutcome(
        step=1,
        winner=0,
        confidences=(0.625,),
        adopted=(),
        rule_steps=(RuleStep(0, (decided(2, 10, 0.75),)),),
        canvas=(10, M, M, M),
        blocks=(PROMPT, BlockView(2, 4, "active", 1, True), BlockView(4, 6, "active", 2, False)),
    ),
    StepOutcome(
        step=2,
        winner=0,
        confidences=(0.5,),
        adopted=(),
        rule_steps=(RuleStep(0, (decided(3, 11, 0.5),)),),
        canvas=(10, 11, M, M),
        blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 2, True)),
    ),
    StepOutcome(
        step=3,
        winner=0,
        confidences=(0.625,),
        adopted=(),
        rule_steps=(RuleStep(0, (decided(4, 12, 0.75),)),),
        canvas=(10, 11, 12, M),
        blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "active", 1, True)),
    ),
    StepOutcome(
        step=4,
        winner=0,
        confidences=(0.25,),
        adopted=(),
        rule_steps=(RuleStep(0, (decided(5, 13, 0.25),)),),
        canvas=(10, 11, 12, 13),
        blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True), BlockView(4, 6, "in_cache", 0, True)),
        finish_reason="length",
    ),
]
"""The outcomes of the three caches: the rule fills positions by their scores, and does not read the cache."""

PLANS = {
    "none": [
        Plan(1, 0, (1, 2, M, M, M, M), whole(range(2, 4)), (), sampling_params=LLADA),
        Plan(2, 0, (1, 2, 10, M, M, M), whole(range(2, 4)), (), sampling_params=LLADA),
        Plan(3, 0, (1, 2, 10, 11, M, M), whole(range(4, 6)), (), sampling_params=LLADA),
        Plan(4, 0, (1, 2, 10, 11, 12, M), whole(range(4, 6)), (), sampling_params=LLADA),
    ],
    # A block's first call feeds everything and stages what lies before the block; the others feed what follows.
    "prefix": [
        Plan(
            1, 0, (1, 2, M, M, M, M), whole(range(2, 4), to_stage=(range(0, 2),)), (), sampling_params=LLADA
        ),
        Plan(
            step=2,
            start=2,
            canvas=(10, M, M, M),
            branches=(Branch(((6, 6),), range(2, 4)),),
            cached=(range(0, 2),),
            commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=False),
            sampling_params=LLADA,
        ),
        Plan(
            3, 0, (1, 2, 10, 11, M, M), whole(range(4, 6), to_stage=(range(0, 4),)), (), sampling_params=LLADA
        ),
        Plan(
            step=4,
            start=4,
            canvas=(12, M),
            branches=(Branch(((6, 6),), range(4, 6)),),
            cached=(range(0, 4),),
            commit=Commit(step=3, branch=0, spans=(range(0, 4),), shared=False),
            sampling_params=LLADA,
        ),
    ],
    # The first call stages what lies around the block; the others feed the block alone.
    "dual": [
        Plan(
            step=1,
            start=0,
            canvas=(1, 2, M, M, M, M),
            branches=whole(range(2, 4), to_stage=(range(0, 2), range(4, 6))),
            cached=(),
            sampling_params=LLADA,
        ),
        Plan(
            step=2,
            start=2,
            canvas=(10, M),
            branches=(Branch(((4, 6),), range(2, 4)),),
            cached=(range(0, 2), range(4, 6)),
            commit=Commit(step=1, branch=0, spans=(range(0, 2), range(4, 6)), shared=False),
            sampling_params=LLADA,
        ),
        Plan(
            3, 0, (1, 2, 10, 11, M, M), whole(range(4, 6), to_stage=(range(0, 4),)), (), sampling_params=LLADA
        ),
        Plan(
            step=4,
            start=4,
            canvas=(12, M),
            branches=(Branch(((6, 6),), range(4, 6)),),
            cached=(range(0, 4),),
            commit=Commit(step=3, branch=0, spans=(range(0, 4),), shared=False),
            sampling_params=LLADA,
        ),
    ],
}


@pytest.mark.parametrize("cache", PLANS)
def test_every_cache(cache: str) -> None:
    settings = FastDllmSettings(max_new_tokens=4, block_size=2, confidence_threshold=0.7, cache=cache)
    steps = [
        Step(plan, [scores], outcome)
        for plan, scores, outcome in zip(PLANS[cache], SCORES, OUTCOMES, strict=True)
    ]
    check_steps(FastDllmSession([1, 2], settings, VOCABULARY), steps)


def test_dreams_first_call_under_a_cache_decides_the_first_position_whatever_the_scores() -> None:
    """Later calls do not feed the row that decides it: the one before the block."""
    settings = FastDllmSettings(max_new_tokens=2, block_size=2, confidence_threshold=0.7)
    steps = [
        Step(
            Plan(1, 0, (1, 2, M, M), (Branch(((4, 4),), range(2, 4), to_stage=(range(0, 2),)),), ()),
            [{2: (10, 0.25), 3: (11, 0.75)}],
            StepOutcome(
                step=1,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(2, 10, 0.25),)),),
                canvas=(10, M),
                blocks=(PROMPT, BlockView(2, 4, "active", 1, True)),
            ),
        ),
        Step(
            Plan(
                step=2,
                start=2,
                canvas=(10, M),
                branches=(Branch(((4, 4),), range(2, 4)),),
                cached=(range(0, 2),),
                commit=Commit(step=1, branch=0, spans=(range(0, 2),), shared=False),
            ),
            [{3: (11, 0.5)}],
            StepOutcome(
                step=2,
                winner=0,
                confidences=(0.5,),
                adopted=(),
                rule_steps=(RuleStep(0, (decided(3, 11, 0.5),)),),
                canvas=(10, 11),
                blocks=(PROMPT, BlockView(2, 4, "in_cache", 0, True)),
                finish_reason="length",
            ),
        ),
    ]
    check_steps(FastDllmSession([1, 2], settings, replace(VOCABULARY, shifted=True)), steps)
