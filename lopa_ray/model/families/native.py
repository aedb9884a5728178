"""The model families that this project's own transformer runs: data, not code, in `dense` and `moe`."""

from __future__ import annotations

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.config_json.special_tokens import Json
from lopa_ray.model.families.dense import DENSE_FAMILIES
from lopa_ray.model.families.family import Family
from lopa_ray.model.families.moe import EXPERT_FAMILIES
from lopa_ray.model.families.published_family import known_types

FAMILIES: tuple[Family, ...] = (*DENSE_FAMILIES, *EXPERT_FAMILIES)


def find_family(raw: Json, where: str) -> Family:
    """The family that claims config.json `raw`; raises `CheckpointError` if none does."""
    for family in FAMILIES:
        if family.claims(raw):
            return family
    model_type, architectures = raw.get("model_type"), raw.get("architectures")
    raise CheckpointError(
        f"{where}: got model_type = {model_type!r} with architectures = {architectures!r}; supported are "
        f"{known_types(FAMILIES)}; use a checkpoint of a supported family, describe its family in "
        "lopa_ray/model, or set model.implementation to auto"
    )


def family_of(config: NativeConfig) -> Family:
    """The family that `config` names; raises `CheckpointError` for an unknown name."""
    for family in FAMILIES:
        if family.name == config.family:
            return family
    raise CheckpointError(
        f"got family {config.family!r}; known are {', '.join(family.name for family in FAMILIES)}; "
        f"correct the configuration"
    )
