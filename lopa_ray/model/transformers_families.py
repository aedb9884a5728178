"""The families that the package transformers runs: under which of its model types, and what it calls keys and tensors.

A family is a row here. What this project's own transformer runs as well has its row in `families.py`, and transformers'
name for it there. A checkpoint of a model type that transformers has itself needs none: see `unlisted_family`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa_ray.model.config import ModelConfig
from lopa_ray.model.families import FAMILIES, QWEN_CONFIG_KEYS, QWEN_PUBLISHED_MODULES
from lopa_ray.model.family import Family, is_of_type
from lopa_ray.model.special_tokens import Json

RenameTensor = Callable[[str], str]
"""From a published tensor's name to the one that transformers knows it by."""


@dataclass(frozen=True, slots=True)
class TransformersFamily:
    """One family of published checkpoints that only transformers runs.

    `runs_as` is the model type of transformers whose class computes it. `config_keys` maps published keys of
    config.json to that class's own, where they differ; `config_defaults` holds what the published code assumes where
    a published key is absent. `tensor_names` are regular expressions of published tensor names and what to replace
    them by, applied in order.
    """

    name: str
    model_type: str
    architecture: str
    runs_as: str
    checkpoints: str
    checked_against: str
    shifted: bool
    config_keys: Mapping[str, str] = field(default_factory=dict)
    config_defaults: Mapping[str, object] = field(default_factory=dict)
    tensor_names: Mapping[str, str] = field(default_factory=dict)

    def translate(self, raw: Json) -> dict[str, Any]:
        """The published config.json `raw` as the class of transformers reads it."""
        named = {self.config_keys.get(key, key): value for key, value in raw.items()}
        return {**self.config_defaults, **named, "model_type": self.runs_as}

    def rename_tensor(self, name: str) -> str:
        """The name that transformers knows a published tensor by."""
        for pattern, replacement in self.tensor_names.items():
            name = re.sub(pattern, replacement, name)
        return name


SDAR_MOE = TransformersFamily(
    name="sdar_moe",
    model_type="sdar_moe",
    architecture="SDARMoeForCausalLM",
    runs_as="qwen3_moe",
    checkpoints="SDAR 30B-A3B",
    checked_against="a random checkpoint in Qwen3-MoE's layout, with transformers' own attention",
    shifted=False,
    # Published decoders have it as a constant.
    config_defaults={"mask_token_id": 151669},
)

TRANSFORMERS_FAMILIES: tuple[TransformersFamily, ...] = (SDAR_MOE,)


def listed_family(raw: Json) -> TransformersFamily | None:
    """The row that config.json `raw` belongs to."""
    for family in TRANSFORMERS_FAMILIES:
        if is_of_type(raw, family.model_type, family.architecture):
            return family
    return None


def listed_types() -> str:
    """What config.json says in checkpoints of all rows, for messages."""
    return ", ".join(f"{row.model_type!r} with [{row.architecture!r}]" for row in TRANSFORMERS_FAMILIES)


def unlisted_family(model_type: str, architecture: str) -> TransformersFamily:
    """Checkpoints of a model type of transformers: its own keys and names, and logits that are not shifted."""
    return TransformersFamily(
        model_type,
        model_type,
        architecture,
        runs_as=model_type,
        checkpoints=f"any of model_type {model_type}",
        checked_against="a trial when it is loaded",
        shifted=False,
    )


def translate_native(config: ModelConfig, family: Family) -> dict[str, Any]:
    """config.json of a model of a native family, as the class of transformers that computes the same reads it."""
    named = {key: getattr(config, name) for name, key in QWEN_CONFIG_KEYS.items()}
    return {"model_type": family.transformers_type, **named}


def tensor_names(config: ModelConfig) -> RenameTensor:
    """What renames the published tensors of a model that transformers runs."""
    for family in FAMILIES:
        if family.name == config.family:
            return _native_names(config, family)
    for other in TRANSFORMERS_FAMILIES:
        if other.name == config.family:
            return other.rename_tensor
    return str


def _native_names(config: ModelConfig, family: Family) -> RenameTensor:
    modules = {}
    for own, published in family.published_modules.items():
        theirs = QWEN_PUBLISHED_MODULES.get(own, published)
        for index in range(config.num_layers if "{i}" in own else 1):
            for name, other in zip(published, theirs, strict=True):
                modules[name.replace("{i}", str(index))] = other.replace("{i}", str(index))

    def rename(name: str) -> str:
        module, _, attribute = name.rpartition(".")
        return f"{modules.get(module, module)}.{attribute}"

    return rename
