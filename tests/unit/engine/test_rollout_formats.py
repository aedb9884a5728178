"""Trajectories as trainers read them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.trajectory import ReplayedAnswer, Trajectory
from lopa_ray.engine.local import LocalEngine
from lopa_ray.engine.rollout_formats import dare_response, jetengine_output, tracerl_rows
from lopa_ray.errors import SettingsError
from support.tiny_model import tiny_engine
from support.verified_decode import PROBLEM

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def trajectory(engine: LocalEngine) -> Trajectory:
    found = engine.generate(PROBLEM, max_new_tokens=64, num_branches=1, trajectory="entropies").trajectory
    assert found is not None
    return found


def test_tracerl_encodes_the_same_ids_again(engine: LocalEngine, trajectory: Trajectory) -> None:
    assert engine.tokenizer is not None
    spelled = [
        engine.tokenizer.encode_markup(letter)[0] for letter in "pens"
    ]  # never encoded letter by letter
    other = replace(trajectory, token_ids=spelled, step_map=[1, 2, 3, 4])
    rollouts = [(trajectory, 1.0), (other, 0.0), (trajectory, None)]
    rows, refused = tracerl_rows(rollouts, engine.tokenizer)
    assert refused == 1 and len(rows) == 2
    assert rows[0].keys() == {"prompt", "response", "step_map", "reward"} and "reward" not in rows[1]
    (row, _), encode = json.loads(json.dumps(rows)), engine.tokenizer.encode_markup
    assert encode(row["prompt"]) == trajectory.prompt_token_ids
    assert encode(row["response"]) == trajectory.token_ids
    assert PROBLEM in row["prompt"] and len(row["step_map"]) == len(trajectory.token_ids)


def test_jetengine_has_three_lists_of_the_tokens(engine: LocalEngine, trajectory: Trajectory) -> None:
    assert engine.tokenizer is not None
    output = jetengine_output(trajectory, engine.tokenizer)
    assert output.keys() == {"text", "token_ids", "trajectory", "logprobs", "entropies"}
    assert {len(output[name]) for name in ("token_ids", "trajectory", "logprobs", "entropies")} == {
        len(trajectory.token_ids)
    }
    assert min(output["trajectory"]) == 1
    with pytest.raises(SettingsError, match="entropies"):
        jetengine_output(replace(trajectory, entropies=None), engine.tokenizer)


PROMPT = list(range(20, 29))
COMMON = {"max_new_tokens": 23, "ignore_eos": True, "trajectory": True}
BLOCKS = BlockDiffusionSettings(**COMMON, block_size=8)


def dare_steps(trajectory: Trajectory, size: int) -> torch.Tensor:
    """What DARE makes of a response: bool [steps local to a block, positions]. It refuses what is asserted here."""
    response = dare_response(trajectory)
    meta, first = response["meta_info"], len(trajectory.prompt_token_ids)
    ids, steps = meta["dllm_replay_token_ids"], meta["dllm_replay_step_maps"]
    assert meta["dllm_replay_contract_version"] == 1
    assert len(ids) == len(steps) and (first + len(ids)) % size == 0 and min(steps) >= 1
    assert meta["dllm_stop_length"] == len(response["token_ids"]) == len(meta["step_maps"]) > 0
    assert response["token_ids"] == ids[: meta["dllm_stop_length"]]
    assert meta["step_maps"] == steps[: meta["dllm_stop_length"]]
    assert len(ids) - meta["dllm_stop_length"] < size
    slices = torch.zeros(max(steps), first + len(ids), dtype=torch.bool)
    slices[torch.tensor(steps) - 1, torch.arange(first, first + len(ids))] = True
    return slices


@pytest.mark.parametrize("drafts", [{}, {"lookahead": "verified", "num_branches": 6}])
def test_dare_replays_blocks_from_position_0(drafts: dict[str, object]) -> None:
    trajectory = tiny_engine("sdar-tiny-3l").generate(PROMPT, BLOCKS.replace(**drafts)).trajectory
    assert trajectory is not None
    slices = dare_steps(trajectory, 8)
    assert torch.equal(slices.sum(0), (torch.arange(32) >= len(PROMPT)).long())
    # In each block the slices come in the order of the steps, from the first on.
    for start in (8, 16, 24):
        block = slices[:, max(start, len(PROMPT)) : start + 8]
        steps = torch.tensor(trajectory.replay.step_map)[
            max(start, len(PROMPT)) - len(PROMPT) : start + 8 - len(PROMPT)
        ]
        firsts = [int(steps[one].unique()) for one in block if one.any()]
        assert block[0].any() and all(a < b for a, b in pairwise(firsts))


def test_dare_replays_what_stands_behind_a_stop() -> None:
    engine = tiny_engine("sdar-tiny-3l")
    ids = engine.generate(PROMPT, BLOCKS).token_ids
    wanted = BLOCKS.replace(stop_token_ids=(ids[9],), stop_at_eos=False)
    trajectory = engine.generate(PROMPT, wanted).trajectory
    assert trajectory is not None and trajectory.replay.stop == ids.index(ids[9]) + 1
    dare_steps(trajectory, 8)


REFUSED: dict[str, tuple[str, GenerationSettings, str]] = {
    "Dream": ("dream-tiny-2l", VanillaSettings(**COMMON), "blocks that begin behind the prompt"),
    "LLaDA": (
        "llada-tiny-3l",
        FastDllmSettings(**COMMON, block_size=8),
        "blocks that begin behind the prompt",
    ),
    "causal": ("nemotron-tiny-3l", NemotronSettings(**COMMON, block_size=8), "blocks that begin behind"),
    "full attention": ("dream-tiny-2l", LopaSettings(**COMMON), "blocks that begin behind the prompt"),
    "in flight together": (
        "sdar-tiny-3l",
        MultiBlockSettings(**COMMON, block_size=8, block_add_threshold=0.0, max_blocks=3),
        "before the one before was finished",
    ),
    "edits": (
        "llada21-tiny-3l",
        EditingSettings(**COMMON, block_size=8, confidence_threshold=0.0, editing_threshold=0.0),
        "edited tokens",
    ),
    "no whole block": ("sdar-tiny-3l", BLOCKS.replace(max_new_tokens=20), "max_new_tokens"),
    "given": ("sdar-tiny-3l", BLOCKS.replace(given_parts=({"token_ids": [5]},)), "given or masked"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dare_is_given_nothing_that_it_cannot_replay(name: str) -> None:
    model, wanted, why = REFUSED[name]
    trajectory = tiny_engine(model).generate(PROMPT, wanted).trajectory
    assert trajectory is not None
    with pytest.raises(SettingsError, match=why):
        dare_response(trajectory)


def test_masks_behind_a_stop_name_the_setting() -> None:
    trajectory = tiny_engine("sdar-tiny-3l").generate(PROMPT, BLOCKS).trajectory
    assert trajectory is not None
    replay = trajectory.replay
    cut = ReplayedAnswer(replay.token_ids, [*replay.step_map[:-1], 0], replay.stop - 1)
    with pytest.raises(SettingsError, match="stop_at_eos"):
        dare_response(replace(trajectory, replay=cut))
