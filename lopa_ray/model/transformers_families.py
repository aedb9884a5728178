"""The families that the package transformers runs: under which of its model types, and what it calls keys and tensors.

A family is a row here. What this project's own transformer runs as well has its row in `families.py`, and transformers'
name for it there. A checkpoint of a model type that transformers has itself needs none: see `unlisted_family`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from lopa_ray.model.config import NativeConfig, TransformersConfig
from lopa_ray.model.dense_families import QWEN_CONFIG_KEYS, QWEN_HEAD_NORMS, QWEN_PUBLISHED_MODULES
from lopa_ray.model.families import family_of
from lopa_ray.model.family import Family, fused_rows, is_of_type
from lopa_ray.model.special_tokens import Json
from lopa_ray.model.yarn import Yarn

RenameTensor = Callable[[str], Mapping[str, slice]]
"""From a published tensor's name to its names in transformers, with the rows that each of these has of it."""

_THEIR_MODULES = QWEN_PUBLISHED_MODULES | QWEN_HEAD_NORMS
"""What classes of transformers call modules of native families, where these differ among themselves."""

_THEIR_ATTRIBUTES = {"expert_bias": "e_score_correction_bias"}

_EXPERT_KEYS = {
    "qwen3_moe": {
        "count": "num_experts",
        "per_token": "num_experts_per_tok",
        "width": "moe_intermediate_size",
    },
    "glm4_moe": {
        "count": "n_routed_experts",
        "per_token": "num_experts_per_tok",
        "width": "moe_intermediate_size",
        "shared": "n_shared_experts",
        "dense_layers": "first_k_dense_replace",
        "groups": "n_group",
        "kept_groups": "topk_group",
        "scale": "routed_scaling_factor",
    },
}
"""What classes of transformers with experts call the fields of `ExpertsConfig`."""


@dataclass(frozen=True, slots=True)
class TransformersFamily:
    """One family of published checkpoints that only transformers runs.

    `runs_as` is the model type of transformers whose class computes it. `config_keys` maps published keys of
    config.json to that class's own, where they differ; `config_defaults` holds what the published code assumes where
    a published key is absent or null, and `mask_token_id` is its mask token where configurations name none.
    `tensor_names` are regular expressions of published tensor names and what to replace them by, applied in order.
    With `denoises_canvases` the model has no mask token, and its configuration is a `CanvasConfig`.
    """

    name: str
    model_type: str
    architecture: str
    runs_as: str
    checked_against: str
    shifted: bool
    mask_token_id: int | None = None
    config_keys: Mapping[str, str] = field(default_factory=dict)
    config_defaults: Mapping[str, object] = field(default_factory=dict)
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    denoises_canvases: bool = False

    def translate(self, raw: Json) -> dict[str, Any]:
        """The published config.json `raw` as the class of transformers reads it."""
        named = {self.config_keys.get(key, key): value for key, value in raw.items()}
        given = {key: value for key, value in named.items() if value is not None}
        return {**named, **self.config_defaults, **given, "model_type": self.runs_as}

    def rename_tensor(self, name: str) -> str:
        """The name of a published tensor in transformers."""
        for pattern, replacement in self.tensor_names.items():
            name = re.sub(pattern, replacement, name)
        return name


TRANSFORMERS_FAMILIES: tuple[TransformersFamily, ...] = (
    TransformersFamily(
        name="diffusion_gemma",
        model_type="diffusion_gemma",
        architecture="DiffusionGemmaForBlockDiffusion",
        runs_as="diffusion_gemma",
        checked_against="recorded forwards and decodes",
        shifted=False,
        denoises_canvases=True,
    ),
)


def listed_family(raw: Json) -> TransformersFamily | None:
    """The row that config.json `raw` belongs to."""
    for family in TRANSFORMERS_FAMILIES:
        if is_of_type(raw, family.model_type, family.architecture):
            return family
    return None


def listed_types() -> str:
    """The values in config.json by which each family is recognised, for messages."""
    return ", ".join(f"{row.model_type!r} with [{row.architecture!r}]" for row in TRANSFORMERS_FAMILIES)


def unlisted_family(model_type: str, architecture: str) -> TransformersFamily:
    """Checkpoints of a model type of transformers: its own keys and names, and logits that are not shifted."""
    return TransformersFamily(
        model_type,
        model_type,
        architecture,
        runs_as=model_type,
        checked_against="a trial when it is loaded",
        shifted=False,
    )


def translate_native(config: NativeConfig, family: Family) -> dict[str, Any]:
    """config.json of a model of a native family, as the class of transformers that computes the same reads it."""
    named = {key: getattr(config, name) for name, key in QWEN_CONFIG_KEYS.items()}
    if config.experts is not None:
        keys = _EXPERT_KEYS[family.transformers_type]
        named |= {key: getattr(config.experts, name) for name, key in keys.items()}
        named |= {"norm_topk_prob": True, "use_qk_norm": config.qk_norm}
        named |= {"partial_rotary_factor": config.partial_rotary_factor}
    if family.reads_yarn:
        # Without parameters the class takes its own. These leave frequencies and queries as they are.
        neutral = Yarn(1.0, config.max_position_embeddings, 32.0, 1.0, llama_4_scaling_beta=0.0)
        named |= {
            "rope_parameters": (config.yarn or neutral).to_json(config.rope_theta),
            "sliding_window": None,
        }
    return {"model_type": family.transformers_type, **named}


def tensor_names(config: TransformersConfig) -> RenameTensor:
    """The renaming of published tensors for a model that transformers runs."""
    if config.native is not None:
        return _native_names(config.native)
    for family in TRANSFORMERS_FAMILIES:
        if family.name == config.family:
            return lambda name: {family.rename_tensor(name): slice(None)}
    return lambda name: {name: slice(None)}


def _native_names(config: NativeConfig) -> RenameTensor:
    modules: dict[str, dict[str, slice]] = {}
    for own, published in family_of(config).published_modules.items():
        theirs = _THEIR_MODULES.get(own, published)
        parts = [{name: slice(None)} for name in theirs]
        if len(published) < len(theirs):  # one published tensor has the rows of all of theirs
            stops = list(accumulate(fused_rows(config, f"{own}.weight") or ()))
            starts = [0, *stops]
            parts = [dict(zip(theirs, map(slice, starts, stops), strict=False))]
        for index in range(config.num_layers if "{i}" in own else 1):
            for name, part in zip(published, parts, strict=True):
                modules[name.replace("{i}", str(index))] = {
                    other.replace("{i}", str(index)): rows for other, rows in part.items()
                }

    def rename(name: str) -> Mapping[str, slice]:
        module, _, attribute = name.rpartition(".")
        attribute = _THEIR_ATTRIBUTES.get(attribute, attribute)
        named = modules.get(module, {module: slice(None)})
        return {f"{other}.{attribute}": rows for other, rows in named.items()}

    return rename
