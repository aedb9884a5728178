"""LoPA and D2F on models of block diffusion: blocks that tile from position 0, one or several in flight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.in_process_group import InProcessGroup
from support.paths import MODELS
from support.tiny_model import load_tiny_model, tiny_engine

NAMES = ("sdar-tiny-3l", "sdar-moe-tiny-3l", "llada2-tiny-3l")


def tiled(**values: Any) -> dict[str, Any]:
    return {"window_attention": "tiled", "stop_at_eos": False, **values}


def prompts(count: int = 8) -> list[list[int]]:
    """Shorter than a block, of whole blocks, and with something left over."""
    draw = random.Random(0)
    return [[draw.randrange(126) for _ in range(length)] for length in (1, 3, 4, 8, 13, 16, 31, 40)[:count]]


ENDS: dict[str, dict[str, Any]] = {
    "whole canvas": {"stop_at_eos": False},
    "no end": {"ignore_eos": True},
    "at EOS": {"stop_at_eos": True},
    "at other tokens": {"stop_at_eos": True, "stop_token_ids": (5, 9, 17, 33), "min_tokens": 6},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("block_size", "threshold"), [(4, 0.6), (8, 0.8)])
@pytest.mark.parametrize("end", ENDS)
def test_one_block_in_flight_is_block_diffusion(
    name: str, block_size: int, threshold: float, end: str
) -> None:
    """Without lookahead and with it. A share of one position per pass is what LoPA's rule fills at least."""
    engine = tiny_engine(name)
    draw = random.Random(f"{name} {block_size} {threshold} {end}")
    asked = [[draw.randrange(126) for _ in range(draw.randrange(1, 30))] for _ in range(4)]
    shared = {
        "max_new_tokens": 30,
        "block_size": block_size,
        "confidence_threshold": threshold,
        **ENDS[end],
    }
    for branches in (1, 4):
        one_block = tiled(block_add_threshold=1.0, **shared)
        several = [LopaSettings(num_branches=branches, **one_block)]
        several += [D2FSettings(**one_block)] if branches == 1 else []
        by_block = BlockDiffusionSettings(fuse_store=True, minimal_topk=1, num_branches=branches, **shared)
        wanted = engine.generate(asked, by_block)
        for settings in several:
            for one, other in zip(wanted, engine.generate(asked, settings), strict=True):
                assert (one.token_ids, one.steps) == (other.token_ids, other.steps)
                assert one.finish_reason == other.finish_reason


VARIANTS: dict[str, dict[str, Any]] = {
    "two tokens per fork": {"tokens_per_fork": 2},
    "two tokens per fork, weighed": {"tokens_per_fork": 2, "creation_confidence_alpha": 0.5},
    "drawn": {"temperature": 0.8, "seed": 5},
    "drawn from the best": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 5},
    "the best of the best": {"top_k": 3, "top_p": 0.9},
    "weighed": {"creation_confidence_alpha": 0.9, "ranking": "margin"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_block_in_flight_is_block_diffusion_whatever_else_is_set(name: str, variant: str) -> None:
    draw = random.Random(f"{name} {variant}")
    for block_size in (2, 3, 5, 8):
        asked = [[draw.randrange(126) for _ in range(draw.randrange(1, 30))] for _ in range(6)]
        for branches in (1, 2, 5):
            shared = {"max_new_tokens": 22, "block_size": block_size, "num_branches": branches}
            assert_one_block_is_block_diffusion(tiny_engine(name), asked, **shared, **VARIANTS[variant])


PENS = r"[A-Z][a-z]+ has \d\*\d=\d\d pens\.\n#### \d\d?"
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "regex": {"guided_regex": PENS},
    "choice": {"guided_choice": ["twelve", "12 pens", "12"]},
    "json": {
        "guided_json": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    },
    "words": {"bad_words": ["pens", "boxes"]},
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_one_block_in_flight_is_block_diffusion_under_a_constraint(kind: str) -> None:
    """What the constraint forces is filled besides what the rule chooses, and not in its place."""
    engine = LocalEngine.from_pretrained("demo")
    asked = ["Tom has 3 boxes with 4 pens each. How many pens does he have?", "Ann"]
    for block_size in (3, 8):
        for branches in (1, 3):
            for threshold in (0.6, 0.95):
                shared = {"max_new_tokens": 40, "block_size": block_size, "num_branches": branches}
                assert_one_block_is_block_diffusion(
                    engine, asked, threshold=threshold, **shared, **CONSTRAINTS[kind]
                )


def assert_one_block_is_block_diffusion(
    engine: LocalEngine, asked: Sequence[Sequence[int] | str], *, threshold: float = 0.8, **values: Any
) -> None:
    shared = {"confidence_threshold": threshold, **values}
    one_block = {"window_attention": "tiled", "block_add_threshold": 1.0}
    wanted = engine.generate(asked, BlockDiffusionSettings(fuse_store=True, **shared))
    in_flight = engine.generate(asked, LopaSettings(**one_block, **shared))
    for one, other in zip(wanted, in_flight, strict=True):
        assert (one.token_ids, one.steps) == (other.token_ids, other.steps)
        assert one.finish_reason == other.finish_reason


STEPS = {
    "sdar-tiny-3l": (4, [347, 182, 239, 130, 255, 134]),
    "sdar-moe-tiny-3l": (4, [269, 168, 130, 110, 132, 106]),
    "llada2-tiny-3l": (8, [222, 132, 97, 63, 100, 71]),
}
"""Block size, and the steps that `docs/decoders.md` gives."""


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_several_blocks_take_fewer_steps(name: str) -> None:
    block_size, recorded = STEPS[name]
    shared = {"max_new_tokens": 48, "block_size": block_size, "confidence_threshold": 0.85}
    one = {"fuse_store": True, "ignore_eos": True, **shared}
    several = tiled(block_add_threshold=0.25, ignore_eos=True, **shared)
    bounded = {"max_blocks": 4, "block_add_threshold": 0.25, "ignore_eos": True, **shared}
    steps = [
        sum(result.steps for result in tiny_engine(name).generate(prompts(), settings))
        for settings in (
            BlockDiffusionSettings(**one),
            BlockDiffusionSettings(num_branches=4, **one),
            D2FSettings(**several),
            LopaSettings(num_branches=4, **several),
            MultiBlockSettings(**bounded),
            MultiBlockSettings(num_branches=4, **bounded),
        )
    ]
    assert steps == pytest.approx(recorded, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_finished_blocks_have_exact_keys_and_values(name: str) -> None:
    """Those that a forward of the decided tokens alone leaves, on workers with and without a branch alike."""
    model = load_tiny_model(name)
    settings = LopaSettings(
        num_branches=3,
        max_new_tokens=24,
        block_size=4,
        block_add_threshold=0.25,
        confidence_threshold=0.5,
        **tiled(ignore_eos=True),
    )
    prompt = prompts()[4]
    group = InProcessGroup(model, 3)
    session = group.create_session(prompt, settings)
    group.scheduler.submit(session)
    held: set[int] = set()
    while group.scheduler.busy:
        group.step()
        held |= {span.stop for span in group.agreed_checksums()[0].spans}
    assert len(held) > 3 and all(stop % 4 == 0 for stop in held)
    ids = prompt + session.generated
    stops = tuple((stop, stop) for stop in range(4, len(ids) + 4, 4))
    runner = group.runners[0]
    end = max(held)
    cached = runner.cache.data[0, :, :, :, :end].clone()
    runner.logits(ids[:end], segments=stops[: end // 4], to_stage=(range(end),))
    torch.testing.assert_close(cached, runner.cache.data[0, :, :, :, :end], atol=2e-4, rtol=0)


def test_a_prompts_blocks_are_found_in_the_prefix_cache() -> None:
    model = {"path": str(MODELS / NAMES[0]), "max_model_len": 96, "prefix_cache": "exact"}
    engine = LocalEngine.from_config(Config.parse({"model": model}))
    settings = LopaSettings(num_branches=2, max_new_tokens=16, block_size=4, **tiled(ignore_eos=True))
    for prompt in (list(range(30)), [*range(22), 90, 91]):
        result = engine.generate(prompt, settings)
        assert result.token_ids == tiny_engine(NAMES[0]).generate(prompt, settings).token_ids
    assert (engine.prefix_index.hit_requests, engine.prefix_index.hit_positions) == (1, 20)


def test_short_answers_take_fewer_passes_per_block() -> None:
    """At least 4 of 8 positions per pass: 2 passes, where there would be one for each."""
    engine = tiny_engine("llada2-tiny-3l")
    shared = {"max_new_tokens": 8, "block_size": 8, "confidence_threshold": 1.0, "ignore_eos": True}
    steps = [
        engine.generate(
            prompts()[3], BlockDiffusionSettings(fuse_store=True, minimal_topk=least, **shared)
        ).steps
        for least in (None, 1, 4, 100)
    ]
    assert steps == [8, 8, 2, 1]
