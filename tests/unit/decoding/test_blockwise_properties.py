"""What decoders that finish one block before the next keep to, whatever the settings and the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from support.fake_model import VOCABULARY
from support.fake_session import decode
from support.settings_strategies import (
    BLOCKWISE_SETTINGS,
    FAKE_MODELS,
    MASK,
    PROMPTS,
    any_block_diffusion,
    any_fast_dllm,
)

pytestmark = pytest.mark.medium


@settings(max_examples=50)
@given(PROMPTS, any_fast_dllm(), FAKE_MODELS, st.booleans())
def test_a_cache_is_rebuilt_once_per_block(prompt, wanted, model, shifted):
    session, steps = decode(prompt, wanted, model, replace(VOCABULARY, shifted=shifted))
    total = len(prompt) + wanted.max_new_tokens
    begun: list[int] = []
    for step in steps:
        plan = step.plan
        first = plan.branches[0].scored.start not in begun
        if first:
            begun.append(plan.branches[0].scored.start)
        if first or wanted.cache == "none":
            assert (plan.start, len(plan.canvas), plan.cached) == (0, total, ())
            around = {
                "none": 0,
                "prefix": plan.branches[0].scored.start,
                "dual": total - len(plan.branches[0].scored),
            }
            assert sum(map(len, plan.branches[0].to_stage)) == around[wanted.cache]
        else:
            assert sum(map(len, plan.cached)) + len(plan.canvas) == total
            assert plan.start == plan.branches[0].scored.start
            assert not plan.branches[0].to_stage
        if first and shifted and wanted.cache != "none":
            alone = 1 + (wanted.num_branches > 1 and len(plan.branches[0].scored) == 2)
            assert [position for position, _ in step.outcome.fills] == list(plan.branches[0].scored[:alone])
    assert begun == list(range(len(prompt), total, wanted.block_size))[: len(begun)]
    if wanted.fill == "schedule" and session.finish_reason == "length":
        assert session.steps <= wanted.steps


@settings(max_examples=50)
@given(PROMPTS, any_block_diffusion(), FAKE_MODELS)
def test_block_diffusion_caches_decided_blocks_alone(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    size, total = wanted.block_size, len(prompt) + wanted.max_new_tokens
    for step in steps:
        plan = step.plan
        if wanted.sub_block_cache and plan.branches[0].scored:  # see test_sub_blocks.py
            continue
        assert plan.cached in ((), (range(plan.start),))
        assert plan.start % size == 0
        ends = [min(end, total) for end in range(plan.start + size, total + size, size)]
        for branch in plan.branches:
            assert branch.segments == tuple((end, end) for end in ends[: len(branch.segments)])
        kept = [
            token
            for token, p in zip(plan.canvas, range(plan.start, total), strict=False)
            for span in plan.branches[0].to_stage
            if p in span
        ]
        assert MASK not in kept
        assert bool(plan.branches[0].to_stage) == plan.stage_shared
        if not wanted.fuse_store:
            assert not (plan.branches[0].to_stage and plan.branches[0].scored)
            assert len(plan.canvas) <= size or not plan.branches[0].scored
        assert len({p // size for p in plan.branches[0].scored}) <= 1


@settings(max_examples=40)
@given(PROMPTS, BLOCKWISE_SETTINGS, FAKE_MODELS)
def test_a_blocks_last_mask_needs_no_comparison(prompt, wanted, model):
    """The branch that fills it has none left and would win, so with lookahead no anchor is left with one. Except for
    decoder indel, where a mask's most likely token may delete it."""
    _, steps = decode(prompt, wanted, model)
    if wanted.num_branches == 1 or wanted.decoder == "indel":
        return
    for step in steps:
        seen = step.reports[step.outcome.winner].positions.tolist()
        assert sum(step.outcome.canvas[p - len(prompt)] == MASK for p in seen) != 1
