"""The families that the package transformers alone runs, and its names for the keys and tensors of all others.

A checkpoint of a model type that transformers has itself needs no family: see `unlisted_family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.config_json.special_tokens import NO_MASK, Json
from lopa_ray.model.families.dense import QWEN_CONFIG_KEYS, QWEN_HEAD_NORMS, QWEN_PUBLISHED_MODULES
from lopa_ray.model.families.family import Family, fused_rows
from lopa_ray.model.families.native import FAMILIES, family_of
from lopa_ray.model.families.published_checkpoint import PublishedCheckpoint
from lopa_ray.model.families.published_family import PublishedFamily
from lopa_ray.model.transformers_models.model_config import TransformersConfig
from lopa_ray.model.yarn import Yarn

RenameTensor = Callable[[str], Mapping[str, slice]]
"""Maps a published tensor's name to its names in transformers, with the rows that each of these has of it."""

_THEIR_MODULES = QWEN_PUBLISHED_MODULES | QWEN_HEAD_NORMS
"""Names of native families' modules in classes of transformers, where the families differ among themselves."""

_THEIR_ATTRIBUTES = {"expert_bias": "e_score_correction_bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersFamily(PublishedFamily):
    """One family of published checkpoints that only transformers runs. `runs_as` is the model type of transformers
    whose class computes it, under the published keys and names of tensors. With `denoises_canvases` the model has no
    mask token, and its configuration is a `CanvasConfig`."""

    runs_as: str
    denoises_canvases: bool = False

    def translate(self, raw: Json) -> dict[str, Any]:
        """The published config.json `raw` as the class of transformers reads it."""
        given = {key: value for key, value in raw.items() if value is not None}
        return {**raw, **self.config_defaults, **given, "model_type": self.runs_as}


TRANSFORMERS_FAMILIES: tuple[TransformersFamily, ...] = (
    TransformersFamily(
        name="diffusion_gemma",
        model_type="diffusion_gemma",
        architecture="DiffusionGemmaForBlockDiffusion",
        runs_as="diffusion_gemma",
        checked_against="recorded forwards and decodes",
        checkpoints=(
            PublishedCheckpoint("google/diffusiongemma-26B-A4B-it", 47.0, "models/diffusion-gemma-26b"),
        ),
        mask_token_id=NO_MASK,
        shifted=False,
        denoises_canvases=True,
    ),
)

KNOWN_FAMILIES: tuple[PublishedFamily, ...] = (*FAMILIES, *TRANSFORMERS_FAMILIES)
"""All families, native families first."""


def unlisted_family(name: str, architecture: str) -> TransformersFamily:
    """Checkpoints of a model type of transformers: its own keys and names, and logits that are not shifted."""
    return TransformersFamily(
        name=name,
        model_type=name,
        architecture=architecture,
        runs_as=name,
        checked_against="a trial when it is loaded",
        shifted=False,
    )


def translate_native(config: NativeConfig, family: Family) -> dict[str, Any]:
    """config.json of a model of a native family, as the class of transformers that computes the same reads it. Raises
    CheckpointError for block routing, which none computes."""
    named = {QWEN_CONFIG_KEYS.get(name, name): getattr(config, name) for name in family.config_keys}
    if config.routing_block:
        why = "chooses experts for whole blocks of positions, which its classes do not; use native"
        raise CheckpointError(f"model.implementation: got transformers for a model that {why}")
    if config.experts is not None:
        keys = {**family.expert_keys, **family.transformers_expert_keys}
        named |= {key: getattr(config.experts, name) for name, key in keys.items()}
        named |= {"norm_topk_prob": True, "use_qk_norm": config.qk_norm}
    if family.reads_yarn:
        # Without parameters the class takes its own. These leave frequencies and queries as they are.
        neutral = Yarn(1.0, config.max_position_embeddings, 32.0, 1.0, llama_4_scaling_beta=0.0)
        named |= {
            "rope_parameters": (config.yarn or neutral).to_json(config.rope_theta),
            "sliding_window": None,
        }
    return {"model_type": family.transformers_type, **named}


def tensor_names(config: TransformersConfig) -> RenameTensor:
    modules = {} if config.native is None else _native_modules(config.native)

    def rename(name: str) -> Mapping[str, slice]:
        module, _, attribute = name.rpartition(".")
        if module not in modules:
            return {name: slice(None)}
        attribute = _THEIR_ATTRIBUTES.get(attribute, attribute)
        return {f"{other}.{attribute}": rows for other, rows in modules[module].items()}

    return rename


def _native_modules(config: NativeConfig) -> dict[str, dict[str, slice]]:
    modules: dict[str, dict[str, slice]] = {}
    for own, published in family_of(config).published_modules.items():
        theirs = _THEIR_MODULES.get(own, published)
        parts = [{name: slice(None)} for name in theirs]
        if len(published) < len(theirs):  # one published tensor has the rows of all of theirs
            stops = list(accumulate(fused_rows(config, f"{own}.weight") or ()))
            parts = [dict(zip(theirs, map(slice, [0, *stops], stops), strict=False))]
        for index in range(config.num_layers if "{i}" in own else 1):
            for name, part in zip(published, parts, strict=True):
                modules[name.replace("{i}", str(index))] = {
                    other.replace("{i}", str(index)): rows for other, rows in part.items()
                }
    return modules
