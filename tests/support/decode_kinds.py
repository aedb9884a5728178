"""One request of every kind that a group decodes, for tests of groups: small settings, by name."""

from __future__ import annotations

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.renoising import RenoisingSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings

FULL = {"max_new_tokens": 24, "block_size": 4, "confidence_threshold": 0.6, "stop_at_eos": False}

GIVEN = ({"token_ids": [5]}, {"hole": 5, "token_ids": [9, 8, 7, 6, 5, 4]}, {"hole": 3, "token_ids": [3, 2]})
"""Parts of an answer, one of which has blocks of its own."""

KINDS: dict[str, GenerationSettings] = {
    "two_phase": LopaSettings(**FULL, num_branches=4),
    "single_phase": LopaSettings(**FULL, num_branches=3, window_attention="block_causal"),
    "drawn_causal": D2FSettings(**FULL, window_attention="block_causal", temperature=0.8, seed=4),
    "blocks_in_flight": LopaSettings(**FULL, num_branches=3, window_attention="tiled"),
    "dual_cache": FastDllmSettings(max_new_tokens=20, block_size=8, confidence_threshold=0.6),
    "prefix_cache": FastDllmSettings(max_new_tokens=20, block_size=8, cache="prefix", num_branches=3),
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=20, num_branches=3),
    "editing": EditingSettings(
        max_new_tokens=24,
        block_size=8,
        confidence_threshold=0.6,
        editing_threshold=0.2,
        max_post_steps=3,
        num_branches=3,
        stop_at_eos=False,
    ),
    "multi_block": MultiBlockSettings(**FULL, max_blocks=3, num_branches=3),
    "multi_block_edits": MultiBlockSettings(
        **FULL | {"block_size": 8}, max_blocks=3, editing_threshold=0.2, max_post_steps=3, num_branches=3
    ),
    "dmax": DMaxSettings(**FULL | {"block_size": 8}, num_branches=3),
    "nemotron": NemotronSettings(**FULL | {"block_size": 8}, num_branches=3),
    "nemotron_full_context": NemotronSettings(**FULL, causal_context=False, num_branches=3),
    "self_speculation": SelfSpeculationSettings(
        drafting="separate",
        max_new_tokens=16,
        block_size=4,
        confidence_threshold=0.3,
        temperature=0.9,
        seed=4,
    ),
    "joint_speculation": SelfSpeculationSettings(
        max_new_tokens=20, block_size=6, num_branches=4, stop_at_eos=False
    ),
    "sub_blocks": BlockDiffusionSettings(
        max_new_tokens=20, block_size=8, sub_block_size=4, sub_block_cache=True, num_branches=3
    ),
    "dual_cache_of_one": FastDllmSettings(max_new_tokens=9, block_size=1),
    "no_cache": FastDllmSettings(max_new_tokens=20, block_size=8, cache="none", num_branches=3),
    "settled": LopaSettings(**FULL, num_branches=3, settled=1.0),
    "auto_budget": LopaSettings(**FULL, num_branches="auto", max_branches=8),
    "verified": LopaSettings(**FULL, num_branches=6, lookahead="verified"),
    "given": LopaSettings(**FULL | {"max_new_tokens": 36}, num_branches=3, given_parts=GIVEN),
    "given_dual_cache": FastDllmSettings(
        max_new_tokens=24, block_size=4, num_branches=2, confidence_threshold=0.6, given_parts=GIVEN
    ),
    "given_verified": LopaSettings(**FULL, num_branches=6, lookahead="verified", given_parts=GIVEN),
    "verified_causal": LopaSettings(
        **FULL,
        num_branches=5,
        lookahead="verified",
        window_attention="block_causal",
    ),
    "verified_relaxed": LopaSettings(
        **FULL, num_branches=6, lookahead="verified", acceptance=0.2, settled=1.0
    ),
    "verified_blocks": BlockDiffusionSettings(max_new_tokens=20, num_branches=4, lookahead="verified"),
    "verified_cache": FastDllmSettings(
        max_new_tokens=20, block_size=8, num_branches=4, confidence_threshold=0.6, lookahead="verified"
    ),
}
KINDS |= {
    decoder.name: decoder.smallest
    for decoder in DECODERS.values()
    if decoder.fills_masks and decoder.name not in {settings.decoder for settings in KINDS.values()}
}

CANVASES: dict[str, GenerationSettings] = {
    "canvases": RenoisingSettings(max_new_tokens=32, max_denoising_steps=7, entropy_bound=1.0, seed=4),
    "early_stops": RenoisingSettings(
        max_new_tokens=48, max_denoising_steps=9, entropy_bound=2.0, confidence_threshold=0.3, ignore_eos=True
    ),
}
"""Of a model without a mask token, whose steps are each conditioned on the one before."""

OFTEN = ("two_phase", "single_phase", "prefix_cache", "block_diffusion", "editing", "verified", "given")
"""Kinds that `make test` has; `.ci/run` has all."""

ALL_KINDS = {**KINDS, **CANVASES}
