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

BIDIRECTIONAL = ("dream-tiny-2l", "dream-tiny-2l-eos", "dream-tiny-4l", "llada-tiny-3l")
BLOCK_CAUSAL = ("sdar-tiny-3l", "sdar-moe-tiny-3l", "llada2-tiny-3l")


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


def any_settings(draw: random.Random, name: str) -> LookaheadSettings:
    """Settings of a decoder of the model's family, with verified lookahead."""
    common: dict[str, Any] = {
        "max_new_tokens": draw.randint(8, 40),
        "num_branches": draw.randint(2, 9),
        "lookahead": "verified",
        "stop_at_eos": draw.random() < 0.5,
        "temperature": draw.choice([0.0, 0.0, 0.05]),
        "seed": draw.randrange(10),
        **logit_changes(draw, 90),
    }
    threshold = draw.choice([0.05, 0.1, 0.3, 0.6])
    settled = draw.choice([None, 1.0])
    if name in BLOCK_CAUSAL:
        if draw.random() < 0.4:
            in_flight = {"window_attention": "tiled", "block_size": 4}
            return LopaSettings(**common, **in_flight, confidence_threshold=threshold, settled=settled)
        if draw.random() < 0.3:
            blocks = draw.randint(1, 3)
            return MultiBlockSettings(
                **common, block_size=4, max_blocks=blocks, confidence_threshold=threshold
            )
        rule = draw.choice(["low_confidence_dynamic", "low_confidence_static", "sequential"])
        return BlockDiffusionSettings(
            **common,
            remasking=rule,
            **draw.choice([{"fuse_store": True}, {"sub_block_size": 2}, {}]),
            confidence_threshold=threshold,
            settled=settled,
        )
    decoder = draw.choice(["lopa", "lopa", "fast_dllm", "vanilla"])
    block_size = draw.choice([4, 8, 16])
    if decoder == "lopa":
        attention = draw.choice(["full", "full", "block_causal"])
        return LopaSettings(
            **common,
            block_size=block_size,
            window_attention=attention,
            confidence_threshold=threshold,
            settled=settled,
        )
    if decoder == "fast_dllm":
        cache = draw.choice(["none", "prefix", "dual"])
        if draw.random() < 0.4:
            steps = -(-common["max_new_tokens"] // block_size) * draw.choice([2, 3])
            fill = draw.choice([{"fill": "factor", "factor": 1.5}, {"fill": "schedule", "steps": steps}])
            return FastDllmSettings(**common, **fill, block_size=block_size, cache=cache)
        return FastDllmSettings(
            **common, block_size=block_size, cache=cache, confidence_threshold=threshold, settled=settled
        )
    remasking = draw.choice(["low_confidence", "random", "origin"])
    return VanillaSettings(**common, remasking=remasking)


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


def check(name: str, requests: int, seed: int) -> int:
    """Compare requests with settings drawn at random; returns how many steps drafts have saved."""
    draw, engine = random.Random(seed), tiny_engine(name)
    wanted = [any_settings(draw, name) for _ in range(requests)]
    prompts = [[draw.randrange(1, 90) for _ in range(draw.randint(1, 20))] for _ in wanted]
    return saved_steps(engine, prompts, wanted)


def saved_steps(
    engine: LocalEngine, prompts: list[list[int]] | list[str], wanted: list[LookaheadSettings]
) -> int:
    """How many steps drafts save, once all results are those of one branch."""
    alone = results_of(engine, prompts, [settings.of_one_branch() for settings in wanted])
    verified = results_of(engine, prompts, wanted)
    for one, result in zip(alone, verified, strict=True):
        assert (result.token_ids, result.finish_reason) == (one.token_ids, one.finish_reason)
        assert result.rule_steps == one.steps >= result.steps
    return sum(one.steps for one in alone) - sum(result.steps for result in verified)


@pytest.mark.parametrize("name", BIDIRECTIONAL + BLOCK_CAUSAL)
def test_tokens_are_those_of_one_branch(name: str) -> None:
    assert check(name, 20, 1) > 0


@pytest.fixture(scope="module")
def demo() -> LocalEngine:
    torch.set_num_threads(1)
    return LocalEngine.from_pretrained("demo", max_model_len=256, max_num_seqs=4)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9))])
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
    prompts = [problem.question for problem in held_out_problems(5, 16)]
    assert saved_steps(demo, prompts, [wanted] * len(prompts)) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", BIDIRECTIONAL + BLOCK_CAUSAL)
def test_tokens_are_those_of_one_branch_in_many_requests(name: str) -> None:
    assert sum(check(name, 25, seed) for seed in range(2, 10)) > 0
