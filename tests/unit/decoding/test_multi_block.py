"""Multi-block diffusion: when blocks begin, what bounds them, and what it has in common with other decoders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from support.fake_session import decode
from support.settings_strategies import EOS, FAKE_MODELS, MASK, PROMPTS, any_settings
from support.tiny_model import tiny_engine

pytestmark = pytest.mark.medium

PROMPT_LENGTHS = (1, 3, 8, 16, 21)
PROMPTS_OF_MODELS = [[(7 * at + length) % 120 for at in range(length)] for length in PROMPT_LENGTHS]
WHOLE: dict[str, Any] = {"max_new_tokens": 46, "ignore_eos": True, "confidence_threshold": 0.6}


@settings(max_examples=60)
@given(PROMPTS, any_settings("multi_block"), FAKE_MODELS)
def test_a_block_begins_when_there_is_a_place_and_the_last_one_is_decided_and_stable(prompt, wanted, model):
    """One at most in a step. `in_flight` has what the step before left."""
    _, steps = decode(prompt, wanted.replace(num_branches=1), model)
    previous = None
    for step in steps:
        before = previous.outcome.blocks[1:] if previous else ()
        in_flight = [block for block in before if block.state != "in_cache"]
        begun = step.outcome.blocks[1 + len(before) :]
        assert len(begun) <= (1 if previous else 2)
        assert len(in_flight) + len(begun) <= wanted.max_blocks
        if in_flight and begun:
            last = in_flight[-1]
            size = last.stop - last.start
            assert (size - last.masks) / size >= wanted.block_add_threshold
            assert stability(previous, last, len(prompt)) >= wanted.stability_threshold
        previous = step


def stability(step, block, prompt_len) -> float:
    """The share of a block's tokens before a step that it found most likely."""
    ids = dict(enumerate(step.plan.input_ids(step.plan.branches[0]), step.plan.start))
    report = step.reports[0]
    chosen = dict(zip(report.positions.tolist(), report.tokens.tolist(), strict=True))
    answer = range(max(block.start, prompt_len), block.stop)
    decided = [p for p in answer if p in chosen and ids[p] != MASK]
    return sum(ids[p] == chosen[p] for p in decided) / len(decided) if decided else 1.0


@settings(max_examples=50)
@given(PROMPTS, any_settings("multi_block"), FAKE_MODELS)
def test_every_block_of_an_answer_is_finished(prompt, wanted, model):
    session, steps = decode(prompt, wanted.replace(stop_at_eos=False), model)
    assert MASK not in session.generated
    assert not steps or steps[-1].outcome.editable == range(0)
    assert len(session.generated) == wanted.max_new_tokens or EOS in session.generated


@pytest.mark.parametrize("name", ["sdar-tiny-3l", "llada2-tiny-3l"])
def test_one_block_in_flight_is_block_diffusion(name: str) -> None:
    """The next block begins after the last one is stored, which is a call of its own there as here."""
    one = MultiBlockSettings(block_size=8, max_blocks=1, decoded_token_threshold=1.0, **WHOLE)
    alone = BlockDiffusionSettings(block_size=8, minimal_topk=1, **WHOLE)
    for several, single in zip(
        tiny_engine(name).generate(PROMPTS_OF_MODELS, one),
        tiny_engine(name).generate(PROMPTS_OF_MODELS, alone),
        strict=True,
    ):
        assert several.token_ids == single.token_ids


@pytest.mark.parametrize("name", ["sdar-tiny-3l", "llada2-tiny-3l"])
def test_blocks_without_a_bound_are_those_of_d2f(name: str) -> None:
    """Behind a prompt of whole blocks. What is left of a prompt counts for the next block here, and not there."""
    thresholds = {"block_size": 8, "block_add_threshold": 0.25, "decoded_token_threshold": 0.75}
    bounded = MultiBlockSettings(max_blocks=2, **thresholds, **WHOLE)
    unbounded = bounded.replace(max_blocks=8)
    d2f = D2FSettings(window_attention="tiled", **thresholds, **WHOLE)
    prompts = [prompt for prompt in PROMPTS_OF_MODELS if len(prompt) % 8 == 0]
    two, any_number, other = (
        tiny_engine(name).generate(prompts, wanted) for wanted in (bounded, unbounded, d2f)
    )
    assert [(r.token_ids, r.steps) for r in any_number] == [(r.token_ids, r.steps) for r in other]
    assert sum(result.steps for result in two) > sum(result.steps for result in any_number)
