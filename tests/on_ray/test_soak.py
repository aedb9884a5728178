"""Many random requests, in flight together, against the same requests alone in one process."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from actors.engine import RayEngine
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine
from support.tiny_model import TINY_EXPERTS, TINY_MODEL, tiny_config

NUM_REQUESTS = 400


def random_settings(rng: random.Random, *, tiled: bool) -> GenerationSettings:
    """`tiled`: `lopa` and `d2f` with blocks that are counted from position 0, and `block_diffusion` besides."""
    common = {
        "max_new_tokens": rng.randint(1, 120),
        "stop_at_eos": rng.random() < 0.5,
        "temperature": rng.choice([0.0, 0.0, 0.7]),
        "seed": rng.randrange(1000),
    }
    block = {"block_size": rng.choice([1, 5, 8, 16, 32]), "confidence_threshold": rng.choice([0.5, 0.9, 1.0])}
    window = {
        "block_add_threshold": rng.choice([0.0, 0.1, 0.5, 1.0]),
        "decoded_token_threshold": rng.choice([0.0, 0.5, 0.95]),
        "window_attention": rng.choice(["full", "block_causal"]),
        "ranking": rng.choice(["probability", "margin", "neg_entropy"]),
    }
    if tiled:
        window["window_attention"] = "tiled"
    decoder = rng.choice(["lopa", "lopa", "d2f", "block_diffusion" if tiled else "fast_dllm"])
    if decoder == "block_diffusion":
        return BlockDiffusionSettings(**common, **block, num_branches=rng.randint(1, 6))
    if decoder == "fast_dllm":
        return FastDllmSettings(**common, **block)
    if decoder == "d2f":
        return D2FSettings(**common, **block, **window)
    return LopaSettings(
        **common,
        **block,
        **window,
        num_branches=rng.randint(1, 12),
        creation_confidence_alpha=rng.choice([0.0, 0.0, 0.5]),
        branch_confidence=rng.choice(["mean", "bottom(0.5)"]),
        tokens_per_fork=rng.choice([1, 2]),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "folder"),
    [
        *((workers, TINY_MODEL) for workers in (1, 2, 4, 8)),
        *((3, folder) for folder in TINY_EXPERTS.values()),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_random_requests_on_any_number_of_workers(workers: int, folder: Path) -> None:
    rng = random.Random(workers)
    model = {"path": str(folder)}
    local = LocalEngine.from_config(tiny_config(model=model))
    tiled = folder in TINY_EXPERTS.values()
    requests = [
        ([rng.randrange(124) for _ in range(rng.randint(1, 100))], random_settings(rng, tiled=tiled))
        for _ in range(NUM_REQUESTS)
    ]
    with RayEngine.from_config(tiny_config(model=model, group={"num_workers": workers})) as engine:
        results = dict(engine.run([engine.create_session(*request) for request in requests]))
        first, *others = engine.checksums()
    assert all(other == first for other in others)
    for index, (prompt, settings) in enumerate(requests):
        result = results[index]
        assert isinstance(result, GenerationResult)
        alone = local.generate(prompt, settings)
        assert (result.token_ids, result.steps, result.forwards) == (
            alone.token_ids,
            alone.steps,
            alone.forwards,
        )
