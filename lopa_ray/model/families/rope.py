"""Rotary embeddings in config.json: the key `rope_parameters` of transformers 5, and the older `rope_scaling`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config_json.size_limits import checked_float
from lopa_ray.model.config_json.special_tokens import Json
from lopa_ray.model.yarn import Yarn

PARAMETERS = "rope_parameters"

_KEYS = ("rope_scaling", PARAMETERS)

_TYPE_KEYS = ("rope_type", "type")

_NUMBERS = ("rope_theta", "partial_rotary_factor")
"""Keys that the default type depends on; older files have them outside."""

_NEUTRAL = {"rope_type": ("yarn",), "type": ("yarn",), "attention_factor": (1,), "truncate": (True,)}
"""Further parameters of the type yarn, with the values that change nothing."""

_SCALES = ("mscale", "mscale_all_dim")
"""Cosines and sines are scaled by the quotient of functions of these two, which is 1 where they are equal."""


def read_rope(raw: Json, where: str, *, reads_yarn: bool) -> tuple[Json, Yarn | None]:
    """config.json `raw` with `rope_theta` and `partial_rotary_factor` outside of these two keys, as older files, and
    YaRN, which is read from `rope_parameters`. Raises CheckpointError, naming `where` and the key, for any other type
    but default, for further parameters, and for a number that differs from the number outside."""
    flat, yarn = {key: value for key, value in raw.items() if key not in _KEYS}, None
    for key in _KEYS:
        stated = _stated(raw.get(key))
        if reads_yarn and key == PARAMETERS and stated is not None and stated.get("rope_type") == "yarn":
            yarn = _read_yarn(stated, where)
        elif (
            stated is None
            or not stated.keys() <= {*_TYPE_KEYS, *_NUMBERS}
            or any(stated.get(name, "default") != "default" for name in _TYPE_KEYS)
        ):
            raise CheckpointError(
                f"{where}: got {key} = {raw[key]!r}; supported is the type default, with {' and '.join(_NUMBERS)} "
                "only; use a checkpoint whose rotary embeddings are not scaled"
            )
        for name in stated.keys() & {*_NUMBERS}:
            outside = flat.get(name)
            if outside is not None and outside != stated[name]:
                raise CheckpointError(
                    f"{where}: got {name} = {outside!r}, but {name} = {stated[name]!r} in {key}; remove the wrong one"
                )
            flat[name] = stated[name]
    return flat, yarn


def _stated(parameters: Any) -> dict[str, Any] | None:
    """Nulls are left out; None if it is not an object."""
    if not isinstance(parameters, Mapping | None):
        return None
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _read_yarn(stated: Mapping[str, Any], where: str) -> Yarn:
    names = [field.name for field in fields(Yarn)]
    numbers = {
        # Without a query scale queries are as they are at any position.
        name: checked_float(
            stated.get(name), f"{PARAMETERS}.{name}", name, where, may_be_zero=name == "llama_4_scaling_beta"
        )
        for name in names
    }
    mscale, mscale_all_dim = (stated.get(name, 1.0) for name in _SCALES)
    for name in stated.keys() - {*names, "rope_theta"}:
        is_neutral = mscale == mscale_all_dim if name in _SCALES else stated[name] in _NEUTRAL.get(name, ())
        if not is_neutral:
            raise CheckpointError(
                f"{where}: got {name} = {stated[name]!r} in {PARAMETERS}, which is not computed with rope_type yarn; "
                "use a checkpoint without it"
            )
    yarn = Yarn(**numbers)
    if not yarn.beta_slow <= yarn.beta_fast:
        raise CheckpointError(
            f"{where}: got beta_slow = {yarn.beta_slow} above beta_fast = {yarn.beta_fast} in {PARAMETERS}; correct "
            "the file"
        )
    return yarn
