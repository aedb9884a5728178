"""The tiny recorded models, and prompts, settings and configurations for them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import NativeConfig, Quantization
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.linear import Linear
from lopa_ray.model.native_implementation import NativeImplementation, load_model
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.transformers_implementation.canvas_implementation import CanvasImplementation
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel
from lopa_ray.model.transformers_models.model_config import CanvasConfig
from support.paths import MODELS

TINY_MODEL = MODELS / "dream-tiny-4l"

CANVAS_MODEL = MODELS / "diffusion-gemma-tiny-3l"
"""Has no mask token; its canvases have 16 positions."""

TINY_MODELS = {family.name: family.tiny_model for family in FAMILIES}

ALL_MODELS = tuple(dict.fromkeys(TINY_MODELS.values()))

DENSE_FAMILIES = tuple(family.name for family in FAMILIES if not family.has_experts)

DENSE_MODELS = tuple(dict.fromkeys(TINY_MODELS[name] for name in DENSE_FAMILIES))

TINY_EXPERTS = {family.name: MODELS / family.tiny_model for family in FAMILIES if family.has_experts}
"""Models with experts, whose blocks are counted from position 0."""

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], list(range(20, 60)), [9] * 11, [77]]

SETTINGS: dict[str, GenerationSettings] = {
    "two_phase": LopaSettings(max_new_tokens=90, num_branches=5, stop_at_eos=False),
    "single_phase": LopaSettings(
        max_new_tokens=90, num_branches=5, window_attention="block_causal", stop_at_eos=False
    ),
    "sampled": LopaSettings(
        max_new_tokens=64, num_branches=4, temperature=0.8, top_p=0.95, seed=3, trajectory=True
    ),
    "penalties": LopaSettings(
        max_new_tokens=64,
        num_branches=4,
        block_size=16,
        confidence_threshold=0.3,
        repetition_penalty=1.2,
        frequency_penalty=0.4,
        presence_penalty=0.2,
        logit_bias={7: -100.0, 19: 1.5},
        trajectory=True,
    ),
    "given": LopaSettings(
        max_new_tokens=60, num_branches=4, block_size=16, given_parts=({"hole": 9, "token_ids": [9, 8, 7]},)
    ),
    "verified": LopaSettings(
        max_new_tokens=64, num_branches=6, block_size=16, lookahead="verified", stop_at_eos=False
    ),
    "prefix_cache": FastDllmSettings(
        max_new_tokens=40, block_size=16, cache="prefix", num_branches=4, stop_at_eos=False
    ),
    "joint_speculation": SelfSpeculationSettings(
        max_new_tokens=40, block_size=8, num_branches=4, temperature=0.5, seed=2, trajectory=True
    ),
}
"""Of each shape of plans (see `support.decode_kinds`) and each way to choose tokens; and the smallest settings of all
other decoders, by their names."""

SETTINGS |= {
    decoder.name: decoder.smallest
    for decoder in DECODERS.values()
    if decoder.fills_masks and decoder.name not in {settings.decoder for settings in SETTINGS.values()}
}


def load_tiny_model(name: str = "dream-tiny-2l", quantization: Quantization = "none") -> Transformer:
    """One of the recorded models, on the CPU."""
    return load_model(MODELS / name, dtype=torch.float32, device="cpu", quantization=quantization)


def load_canvas_model() -> CanvasModel:
    """The recorded model without a mask token, on the CPU."""
    config = load_config(CANVAS_MODEL, "transformers")
    assert isinstance(config, CanvasConfig)
    implementation = CanvasImplementation(config, torch.float32)
    model = implementation.build_model(implementation.read_weights(CANVAS_MODEL))
    assert isinstance(model, CanvasModel)
    return model


@cache
def tiny_engine(name: str) -> LocalEngine:
    """An engine of one of the recorded models, on one thread; a process has one of each."""
    torch.set_num_threads(1)
    return LocalEngine.from_pretrained(MODELS / name, max_model_len=128, max_num_seqs=4)


def tiny_config(**sections: dict[str, Any]) -> Config:
    """A group on TINY_MODEL that asks for half a CPU per worker."""
    model = {"path": str(TINY_MODEL), "max_model_len": 256, **sections.get("model", {})}
    group = {"num_cpus": 0.5, **sections.get("group", {})}
    return Config.parse({"model": model, "group": group})


def tiny_spec(**sections: dict[str, Any]) -> ModelSpec:
    """What the workers of such a group are handed."""
    return ModelSpec.read(tiny_config(**sections))


def random_model(
    config: NativeConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Transformer:
    """A native model with the weights of `NativeImplementation.random_weights`."""
    implementation = NativeImplementation(config, dtype, device)
    return implementation.build_model(implementation.random_weights(seed))


def odd_model(**changes: object) -> Transformer:
    """A random model that three shards can have, with a vocabulary that they cannot have equal parts of."""
    sizes = {
        "hidden_size": 96,
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_dim": 16,
        "intermediate_size": 198,
        "vocab_size": 1000,
        "mask_token_id": 999,
        "eos_token_id": 998,
        "pad_token_id": None,
        "bos_token_id": None,
    }
    config = replace(load_tiny_model().config, **{**sizes, **changes})  # type: ignore[arg-type]
    model = random_model(config, 0, torch.float32, "cpu")
    for name, parameter in model.named_parameters():
        if name.endswith("scale") or (parameter.dim() == 2 and parameter.is_floating_point()):
            parameter.mul_(4)  # sharper, so that probabilities spread
    return model


def filled_linear(quantization: Quantization, weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A layer that has the floating weights [O, I] in a format, with scales per output."""
    config = load_config(TINY_MODEL).with_quantization(quantization)
    layer = Linear(config, (weight.shape[0], weight.shape[1]), bias=bias is not None)
    scale, stored = layer.format.encode(weight)
    for name, value in ((layer.format.scale_name, scale), ("weight", stored), ("bias", bias)):
        if value is not None:
            layer.hold(name, value)
    layer.format.prepare(layer)
    return layer
