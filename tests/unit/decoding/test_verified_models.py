"""Verified lookahead on the recorded tiny models: every bit is that of one branch."""

from __future__ import annotations

import random
from typing import Any

import pytest

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


def any_settings(draw: random.Random, name: str) -> LookaheadSettings:
    """Settings of a decoder of the model's family, with verified lookahead."""
    common: dict[str, Any] = {
        "max_new_tokens": draw.randint(8, 40),
        "num_branches": draw.randint(2, 9),
        "lookahead": "verified",
        "stop_at_eos": draw.random() < 0.5,
        "temperature": draw.choice([0.0, 0.0, 0.05]),
        "seed": draw.randrange(10),
        "repetition_penalty": draw.choice([1.0, 1.0, 1.3]),
    }
    threshold = draw.choice([0.05, 0.1, 0.3, 0.6])
    settled = draw.choice([None, 1.0])
    if name in BLOCK_CAUSAL:
        if draw.random() < 0.4:
            in_flight = {"window_attention": "block_causal", "block_origin": "start", "block_size": 4}
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


def results_of(
    engine: LocalEngine, prompts: list[list[int]], wanted: list[LookaheadSettings]
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
    alone = results_of(engine, prompts, [settings.of_one_branch() for settings in wanted])
    verified = results_of(engine, prompts, wanted)
    for one, result in zip(alone, verified, strict=True):
        assert (result.token_ids, result.finish_reason) == (one.token_ids, one.finish_reason)
        assert result.rule_steps == one.steps >= result.steps
    return sum(one.steps for one in alone) - sum(result.steps for result in verified)


@pytest.mark.parametrize("name", BIDIRECTIONAL + BLOCK_CAUSAL)
def test_tokens_are_those_of_one_branch(name: str) -> None:
    assert check(name, 20, 1) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", BIDIRECTIONAL + BLOCK_CAUSAL)
def test_tokens_are_those_of_one_branch_in_many_requests(name: str) -> None:
    assert sum(check(name, 25, seed) for seed in range(2, 10)) > 0
