"""DMax: which inputs are soft, when a block ends, and how forks race."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lopa_ray.decoding.decoders.dmax import SURE
from lopa_ray.protocol.plan_inputs import SoftInputs
from support.fake_session import decode
from support.settings_strategies import FAKE_MODELS, MASK, PROMPTS, any_settings

pytestmark = pytest.mark.medium


@settings(max_examples=40)
@given(PROMPTS, any_settings("dmax"), FAKE_MODELS)
def test_a_tokens_weight_is_its_probability_in_the_last_call_on_the_block(prompt, wanted, model):
    """Masks, the prompt and finished blocks are fed as they are, and so is all that is staged."""
    _, steps = decode(prompt, wanted, model)
    chosen: dict[int, tuple[int, float]] = {}
    block = None
    for step in steps:
        plan = step.plan
        if plan.branches[0].scored != block:
            block, chosen = plan.branches[0].scored, {}
        assert isinstance(plan.inputs, SoftInputs) == bool(chosen)
        if isinstance(plan.inputs, SoftInputs):
            assert not plan.branches[0].to_stage
            expected = [
                1.0 if token == MASK or position not in chosen else chosen[position][1]
                for position, token in enumerate(plan.canvas, plan.start)
            ]
            assert list(plan.inputs.weights) == expected
            for branch in plan.branches:
                assert [(token, weight) for (_, token), weight in zip(
                    branch.fills, branch.fill_weights, strict=True
                )] == [chosen[position] for position, _ in branch.fills]  # fmt: skip
        report = step.reports[step.outcome.winner]
        rows = zip(
            report.positions.tolist(), report.tokens.tolist(), report.probabilities.tolist(), strict=True
        )
        chosen = {position: (token, probability) for position, token, probability in rows}


@settings(max_examples=40)
@given(PROMPTS, any_settings("dmax"), FAKE_MODELS)
def test_a_block_ends_without_masks_by_a_sure_or_idle_call_or_by_their_number(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    calls: dict[range, int] = {}
    for step in steps:
        outcome, scored = step.outcome, step.plan.branches[0].scored
        calls[scored] = calls.get(scored, 0) + 1
        sure = min(step.reports[outcome.winner].probabilities.tolist()) >= SURE
        settles = sure or not outcome.filled or calls[scored] >= wanted.block_size
        masks_left = MASK in outcome.canvas[scored.start - len(prompt) : scored.stop - len(prompt)]
        assert (settles and not masks_left) == (not set(scored) & set(outcome.editable))
    assert all(count <= wanted.block_size for count in calls.values())
    assert not steps or steps[-1].outcome.editable == range(0)
