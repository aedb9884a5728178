"""Rotary embeddings in config.json: the key `rope_parameters` of transformers 5, and the older `rope_scaling`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.special_tokens import Json

_KEYS = ("rope_scaling", "rope_parameters")

_TYPE_KEYS = ("rope_type", "type")

_NUMBERS = ("rope_theta", "partial_rotary_factor")
"""What the default type depends on; older files have these keys outside."""


def flatten_rope(raw: Json, where: str) -> Json:
    """config.json `raw` with `rope_theta` and `partial_rotary_factor` outside of these two keys, as older files. Raises
    CheckpointError, naming `where` and the key, for any type but default, for further parameters, and for a number that
    differs from the one outside."""
    flat = {key: value for key, value in raw.items() if key not in _KEYS}
    for key in _KEYS:
        for name, value in _default_type(key, raw.get(key), where).items():
            outside = flat.get(name)
            if outside is not None and outside != value:
                raise CheckpointError(
                    f"{where}: got {name} = {outside!r}, but {name} = {value!r} in {key}; remove the wrong one"
                )
            flat[name] = value
    return flat


def _default_type(key: str, parameters: Any, where: str) -> Mapping[str, Any]:
    """The numbers of rotary embeddings of the default type. Raises CheckpointError for another one."""
    if parameters is None:
        return {}
    stated = {}
    if is_mapping := isinstance(parameters, Mapping):
        stated = {name: value for name, value in parameters.items() if value is not None}
    is_default = is_mapping and all(stated.get(name, "default") == "default" for name in _TYPE_KEYS)
    if not is_default or not stated.keys() <= {*_TYPE_KEYS, *_NUMBERS}:
        raise CheckpointError(
            f"{where}: got {key} = {parameters!r}; supported is the type default, with {' and '.join(_NUMBERS)} only; "
            "use a checkpoint whose rotary embeddings are not scaled"
        )
    return {name: stated[name] for name in _NUMBERS if name in stated}
