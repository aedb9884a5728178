"""What a trace tells of steps, from plans and outcomes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import GenerationResult, ResultBuilder
from lopa_ray.decoding.trace import TraceRuleStep
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from support.context_model import ContextModel
from support.settings_strategies import PROMPTS
from support.verified_decode import PROBLEM

pytestmark = pytest.mark.medium

BRANCHES = {"num_branches": 8, "lookahead": "verified", "max_new_tokens": 40}
SETTINGS: list[LookaheadSettings] = [
    LopaSettings(**BRANCHES, block_size=8, confidence_threshold=0.7),
    LopaSettings(**BRANCHES, block_size=8, confidence_threshold=0.7, window_attention="block_causal"),
    BlockDiffusionSettings(**BRANCHES, block_size=4, confidence_threshold=0.7, fuse_store=True),
    FastDllmSettings(**BRANCHES, block_size=8, confidence_threshold=0.7),
    VanillaSettings(**BRANCHES),
]


def traced(
    prompt: list[int], settings: LookaheadSettings, model: ContextModel
) -> tuple[GenerationResult, list[tuple[Plan, StepOutcome]]]:
    """A decode on a stand-in for a model, and its steps."""
    session = new_session(prompt, settings, model.vocabulary)
    builder = ResultBuilder(session, with_trace=True)
    steps = []
    while not session.finished:
        plan = session.plan()
        outcome = session.advance(model.reports(plan))
        builder.add_step(plan, outcome)
        steps.append((plan, outcome))
    return builder.build(None, 1.0), steps


@given(PROMPTS, st.sampled_from(SETTINGS), st.builds(ContextModel, seed=st.integers(0, 2**16)))
def test_steps_of_the_rule_are_those_of_one_branch(
    prompt: list[int], wanted: LookaheadSettings, model: ContextModel
) -> None:
    """Depth by depth the trace has what one branch would have filled; the steps are forwards."""
    alone, _ = traced(prompt, wanted.of_one_branch(), replace(model))
    result, steps = traced(prompt, wanted, replace(model))
    assert result.steps == len(result.trace) == len(steps)
    assert result.rule_steps == sum(step.depth for step in result.trace) == alone.steps == alone.rule_steps
    assert alone.mean_depth == 1
    assert result.mean_depth == pytest.approx(alone.steps / result.steps)
    rule_steps = [rule_step for step in result.trace for rule_step in step.rule_steps]
    assert [rule_step.fills for rule_step in rule_steps] == [step.fills for step in alone.trace]
    for step in result.trace:
        assert step.fills == tuple(fill for rule_step in step.rule_steps for fill in rule_step.fills)
        assert tuple(decision.fill for decision in step.decided) == step.fills
        assert step.rule_steps[0].branch == 0
        # The anchor comes first, and each draft has its number.
        names = [step.branch_name(at) for at in range(len(step.branches))]
        assert names == ["anchor", *(f"+{number}" for number in range(1, len(names)))]
        # What the rule had filled before it took a draft's report is that draft.
        filled: set[tuple[int, int]] = set()
        for rule_step in step.rule_steps:
            if rule_step.branch is not None:
                assert set(step.branches[rule_step.branch].fills) == filled
            filled |= set(rule_step.fills)
        assert step.winner == (step.accepted[-1] if step.accepted else 0)


def test_a_comparison_of_forks_is_one_step_of_the_rule(engine: LocalEngine) -> None:
    result = engine.generate(PROBLEM, LopaSettings(num_branches=4, max_new_tokens=64), trace=True)
    assert result.rule_steps == result.steps
    assert any(step.branches[step.winner].fills for step in result.trace)
    for step in result.trace:
        assert step.rule_steps == (TraceRuleStep(step.winner, step.fills),)
        assert step.accepted == ()
        # Forks come first, then the anchor.
        names = [step.branch_name(at) for at in range(len(step.branches))]
        assert names == [*(f"+{number}" for number in range(1, len(names))), "anchor"]
