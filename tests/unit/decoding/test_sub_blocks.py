"""Sub-blocks and their cache, and published folders of Fast-dLLM v2."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.model.checkpoint.config_files import load_config
from support.checkpoints import edit_json, load, logits, refused
from support.fake_model import VOCABULARY, FakeModel
from support.paths import MODELS
from support.settings_strategies import FAKE_MODELS, MASK, PROMPTS, any_block_diffusion
from support.tiny_model import tiny_engine

LENGTHS = (3, 16, 21, 32)
"""Lengths of prompts: less than a block of 16, exactly one, one and a part, two."""

SUB_BLOCKS = BlockDiffusionSettings(max_new_tokens=43, block_size=16, sub_block_size=4)


def prompts(model: str) -> list[list[int]]:
    draw = torch.Generator().manual_seed(len(model))
    return [torch.randint(0, 120, (length,), generator=draw).tolist() for length in LENGTHS]


def decode(model: str, wanted: BlockDiffusionSettings) -> list[GenerationResult]:
    return tiny_engine(model).generate(prompts(model), wanted, trace=True)


@pytest.mark.medium
@pytest.mark.parametrize("model", ["dream-tiny-4l", "sdar-tiny-3l"])
def test_the_cache_saves_rows_and_drops_no_fork(model: str) -> None:
    def rows(result: GenerationResult) -> int:
        return sum(step.branches[0].stop - step.input_start for step in result.trace)

    wanted = SUB_BLOCKS.replace(ignore_eos=True)
    for whole, parts in zip(
        decode(model, wanted), decode(model, wanted.replace(sub_block_cache=True)), strict=True
    ):
        assert rows(parts) < rows(whole)
    ahead = wanted.replace(sub_block_cache=True, num_branches=4)
    won = 0
    for result in decode(model, ahead):
        for step in result.trace:
            assert not (step.kept and len(step.branches) > 1)
            won += len(step.branches[step.winner].fills)
    assert won > 0


@settings(max_examples=50)
@given(PROMPTS, any_block_diffusion(), FAKE_MODELS)
def test_a_sub_block_is_filled_before_the_next(prompt, wanted, model):
    """And a call on it alone reads all of the block around it."""
    size, part = wanted.block_size, wanted.sub_block_size
    if part is None:
        return
    vocabulary = replace(VOCABULARY, shifted=len(prompt) % 2 == 0)
    session = new_session(prompt, wanted, vocabulary)
    while not session.finished:
        plan = session.plan()
        if plan.branches[0].scored:
            block = range(plan.branches[0].scored.start // size * size, session.max_len)[:size]
            spans = {(p - block.start) // part for p in plan.branches[0].scored}
            assert len(spans) == 1
            before = range(max(block.start, len(prompt)), plan.branches[0].scored.start)
            assert MASK not in session.generated[before.start - len(prompt) : before.stop - len(prompt)]
            branch = plan.branches[0]
            if (
                wanted.sub_block_cache
                and branch.stop - plan.start < len(block)
                and not plan.branches[0].to_stage
            ):
                fed = set(range(plan.start, branch.stop))
                assert set(plan.branches[0].scored) <= fed
                assert {p for span in plan.cached for p in span} == set(range(block.stop)) - fed
                assert branch.segments == ((branch.stop, block.stop),)
        if plan.branches[0].to_stage:
            assert plan.stage_shared and len(plan.branches) == 1
        session.advance(model.reports(plan))


def test_a_call_on_the_whole_block_is_made_while_the_first_position_is_masked():
    """The row that decides it is not in the sub-block."""
    wanted = SUB_BLOCKS.replace(sub_block_cache=True, remasking="sequential", ignore_eos=True)
    session = new_session([1, 2], wanted, replace(VOCABULARY, shifted=True))
    model, calls = FakeModel(), []
    while not session.finished and len(calls) < 15:
        plan = session.plan()
        calls.append((plan.start, len(plan.canvas), bool(plan.branches[0].to_stage)))
        session.advance(model.reports(plan))
    first = [(0, 16, True), (0, 4, False)]
    others = [call for start in (4, 8, 12) for call in [(0, 16, True), *[(start, 4, False)] * 3]]
    assert calls == [*first, *others, (0, 17, True)]


def test_a_published_folder_loads_without_a_mask_token_in_its_config(tmp_path: Path) -> None:
    """Its code has the id as a constant. The tensors are those of Qwen2.5, which Dream shares."""
    folder = Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))
    edit_json(
        folder / "config.json",
        model_type="Fast_dLLM_Qwen",
        architectures=["Fast_dLLM_QwenForCausalLM"],
        bd_size=32,
        mask_token_id=...,
    )
    edit_json(folder / "generation_config.json", mask_token_id=...)
    refused(folder, "got no mask_token_id", "generation_config.json")
    edit_json(folder / "config.json", mask_token_id=127)
    model = load(folder)
    assert (model.config.family, model.config.shifted, model.config.qkv_bias) == ("fast_dllm_v2", True, True)
    ids = [1, 2, 127]
    assert torch.equal(logits(model, ids), logits(load(MODELS / "dream-tiny-2l"), ids))
    assert load_config(folder) == model.config
