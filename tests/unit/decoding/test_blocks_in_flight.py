"""LoPA and D2F on models of block diffusion: blocks that tile from position 0, one or several in flight."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.in_process_group import InProcessGroup
from support.paths import MODELS
from support.tiny_model import load_tiny_model, tiny_engine

pytestmark = pytest.mark.medium

NAMES = ("sdar-tiny-3l", "sdar-moe-tiny-3l", "llada2-tiny-3l")


def tiled(**values: Any) -> dict[str, Any]:
    return {"window_attention": "tiled", "stop_at_eos": False, **values}


ENDS: dict[str, dict[str, Any]] = {
    "whole canvas": {"stop_at_eos": False},
    "no end": {"ignore_eos": True},
    "at EOS": {"stop_at_eos": True},
    "at other tokens": {"stop_at_eos": True, "stop_token_ids": (5, 9, 17, 33), "min_tokens": 6},
}


@pytest.mark.parametrize(
    ("name", "block_size", "threshold", "end"),
    [
        ("sdar-tiny-3l", 4, 0.6, "whole canvas"),
        ("llada2-tiny-3l", 8, 0.8, "whole canvas"),
        ("sdar-moe-tiny-3l", 8, 0.8, "no end"),
        ("llada2-tiny-3l", 4, 0.6, "at EOS"),
        ("sdar-tiny-3l", 8, 0.8, "at EOS"),
        ("sdar-moe-tiny-3l", 4, 0.6, "at other tokens"),
    ],
)
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
    prompt = list(range(40, 53))
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
