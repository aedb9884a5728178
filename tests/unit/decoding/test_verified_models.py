"""Verified lookahead on real models: every bit is that of one branch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from lopa_lab.word_problems.generator import held_out_problems
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine
from support.tiny_model import tiny_engine

pytestmark = pytest.mark.medium

PATTERNS: tuple[dict[str, Any], ...] = (
    {},
    {"guided_regex": "[0-9*+= ]{4,24}(pens|left)?"},
    {"guided_choice": ("twelve pens", "12 pens", "12")},
    {"guided_json": '{"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]}'},
    {"bad_words": ("pens", "has", "=")},
)


def logit_changes(draw: random.Random, vocab_size: int) -> dict[str, Any]:
    """Penalties and biases, several of them together or none."""
    return {
        "repetition_penalty": draw.choice([1.0, 1.0, 1.3, 0.8]),
        "frequency_penalty": draw.choice([0.0, 1.0, 2.0, -0.4]),
        "presence_penalty": draw.choice([0.0, 0.0, 0.5]),
        "logit_bias": {
            draw.randrange(vocab_size): draw.uniform(-4, 4) for _ in range(draw.choice([0, 0, 4]))
        },
    }


def any_request(draw: random.Random) -> LookaheadSettings:
    """Settings for the model of the package, whose answers repeat tokens: numbers and names."""
    length, pattern = draw.choice([24, 48]), draw.choice(PATTERNS)
    common: dict[str, Any] = {
        "max_new_tokens": length,
        "min_tokens": draw.choice([0, 0, 8]),
        "num_branches": draw.randint(2, 9),
        "lookahead": "verified",
        "block_size": draw.choice([8, 16, 32]),
        "stop_at_eos": draw.random() < 0.7,
        "stop_token_ids": draw.choice([(), (draw.randrange(200),)]),
        "temperature": draw.choice([0.0, 0.0, 0.7]),
        "seed": draw.randrange(10),
        "confidence_threshold": draw.choice([0.6, 0.9]),
        **logit_changes(draw, 200),
        **pattern,
    }
    if not pattern and draw.random() < 0.4:
        hole = {"hole": draw.randint(1, 9), "text": draw.choice([" = ", " pens."])}
        common["given_parts"] = [{"text": "She has "}, hole][draw.randint(0, 1) :]
    if draw.random() < 0.3:
        return FastDllmSettings(**common, cache=draw.choice(["none", "prefix", "dual"]))
    block_causal = "given_parts" not in common and draw.random() < 0.5
    return LopaSettings(**common, window_attention="block_causal" if block_causal else "full")


def results_of(
    engine: LocalEngine, prompts: list[list[int]] | list[str], wanted: list[LookaheadSettings]
) -> list[GenerationResult]:
    """The results of requests that run together."""
    sessions = [engine.create_session(*request) for request in zip(prompts, wanted, strict=True)]
    results = dict(engine.run(sessions))
    for result in results.values():
        assert isinstance(result, GenerationResult), result
    return [results[index] for index in range(len(sessions))]


def saved_steps(
    engine: LocalEngine, prompts: list[list[int]] | list[str], wanted: list[LookaheadSettings]
) -> int:
    """How many steps drafts save, once all results are those of one branch, with all fields of their trajectories."""
    wanted = [settings.replace(trajectory="entropies") for settings in wanted]
    alone = results_of(engine, prompts, [settings.of_one_branch() for settings in wanted])
    verified = results_of(engine, prompts, wanted)
    for one, result in zip(alone, verified, strict=True):
        assert (result.token_ids, result.finish_reason) == (one.token_ids, one.finish_reason)
        assert result.rule_steps == one.steps >= result.steps
        assert result.trajectory == one.trajectory is not None
    return sum(one.steps for one in alone) - sum(result.steps for result in verified)


@pytest.fixture(scope="module")
def demo() -> LocalEngine:
    torch.set_num_threads(1)
    return LocalEngine.from_pretrained("demo", max_model_len=256, max_num_seqs=4)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 9))]
)
def test_penalties_patterns_and_holes_give_the_tokens_of_one_branch(demo: LocalEngine, seed: int) -> None:
    draw = random.Random(seed)
    wanted = [any_request(draw) for _ in range(16)]
    prompts = [problem.question for problem in held_out_problems(seed, len(wanted))]
    assert saved_steps(demo, prompts, wanted) > 0


def test_a_frequency_penalty_counts_each_token_once(demo: LocalEngine) -> None:
    """The drafts' tokens too: their branches have them as fills of the canvas on which the anchor is."""
    wanted = LopaSettings(
        max_new_tokens=64, block_size=32, frequency_penalty=1.0, num_branches=6, lookahead="verified"
    )
    prompts = [problem.question for problem in held_out_problems(5, 6)]
    assert saved_steps(demo, prompts, [wanted] * len(prompts)) > 0


COMMON: dict[str, Any] = {"max_new_tokens": 40, "num_branches": 6, "lookahead": "verified"}
BY_THRESHOLD: dict[str, Any] = {**COMMON, "confidence_threshold": 0.9, "ignore_eos": True}
OF_FAMILIES: dict[str, tuple[str, LookaheadSettings]] = {
    "a schedule": ("dream-tiny-2l-eos", VanillaSettings(**COMMON, temperature=0.05, seed=3)),
    "dual cache": ("llada-tiny-3l", FastDllmSettings(**BY_THRESHOLD, block_size=16, cache="dual")),
    "block-causal": ("dream-tiny-4l", LopaSettings(**BY_THRESHOLD, window_attention="block_causal")),
    "from position 0": (
        "sdar-moe-tiny-3l",
        LopaSettings(**BY_THRESHOLD, window_attention="tiled", block_size=4),
    ),
    "blocks": ("sdar-tiny-3l", BlockDiffusionSettings(**BY_THRESHOLD, block_size=8, fuse_store=True)),
    "sub-blocks": ("llada2-tiny-3l", BlockDiffusionSettings(**BY_THRESHOLD, block_size=8, sub_block_size=4)),
    "several blocks": ("llada2-tiny-3l", MultiBlockSettings(**BY_THRESHOLD, block_size=8)),
}


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_tokens_are_those_of_one_branch(name: str) -> None:
    model, wanted = OF_FAMILIES[name]
    prompts = [[(7 * at + length) % 90 for at in range(length)] for length in (1, 3, 8, 16, 21)]
    assert saved_steps(tiny_engine(model), prompts, [wanted] * len(prompts)) > 0
