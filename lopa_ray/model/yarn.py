"""YaRN (arXiv 2309.00071) as config.json describes it in `rope_parameters`, with the query scale of Ministral 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.special_tokens import Json

KEY = "rope_parameters"

_LARGEST = 2.0**53
"""Numbers above this are no numbers of positions, and integers above it are not exact as floats."""

_SCALES = ("mscale", "mscale_all_dim")
"""Cosines and sines are scaled by the quotient of functions of these two, which is 1 where they are equal."""

_QUERY_SCALE = "llama_4_scaling_beta"
"""The one parameter that may be 0: queries are as they are at any position then."""

_NEUTRAL = {"attention_factor": (None, 1, 1.0), "truncate": (None, True)}
"""Further parameters, with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies of rotary embeddings that reach beyond the positions of an earlier training.

    Dims that turn less than `beta_slow` times within `original_max_position_embeddings` have `factor` times the
    wavelength, dims that turn more than `beta_fast` times keep theirs, and others lie between. At position p queries
    are multiplied by 1 + `llama_4_scaling_beta` · ln(1 + floor(p / `original_max_position_embeddings`)).
    """

    factor: float
    original_max_position_embeddings: float
    beta_fast: float
    beta_slow: float
    llama_4_scaling_beta: float

    def ramp(self, rotary_dim: int, theta: float) -> tuple[float, float]:
        """Indices of pairs of dims: up to the first a pair keeps its wavelength, from the second on it is `factor`
        times as long. The first is less than the second."""

        def pair(turns: float) -> float:
            wavelength = self.original_max_position_embeddings / turns
            return rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

        low, high = (
            max(math.floor(pair(self.beta_fast)), 0),
            min(math.ceil(pair(self.beta_slow)), rotary_dim - 1),
        )
        return low, high if low != high else high + 0.001

    def to_json(self, theta: float) -> dict[str, Any]:
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"rope_type": "yarn", "rope_theta": theta, **dict.fromkeys(_SCALES, 1.0), **numbers}


def split_yarn(raw: Json, where: str) -> tuple[Json, Yarn | None]:
    """config.json `raw` without what describes YaRN, and YaRN; None if the rotary embeddings are of another type.
    Raises CheckpointError, naming `where`, for a parameter that is missing, is no number above 0 or is not computed."""
    parameters = raw.get(KEY)
    if not isinstance(parameters, Mapping) or parameters.get("rope_type") != "yarn":
        return raw, None
    left = {key: value for key, value in parameters.items() if key != "rope_type" and value is not None}
    if left.get("type") == "yarn":  # an earlier name of rope_type, which some files have beside it
        del left["type"]
    numbers = {field.name: _number(left.pop(field.name, None), field.name, where) for field in fields(Yarn)}
    yarn = Yarn(**numbers)
    scales = [left.pop(name, 1.0) for name in _SCALES]
    for name, value in left.items():
        if name != "rope_theta" and value not in _NEUTRAL.get(name, ()):
            raise CheckpointError(
                f"{where}: got {name} = {value!r} in {KEY}, which is not computed with rope_type yarn; use a "
                "checkpoint without it"
            )
    if scales[0] != scales[1]:
        raise CheckpointError(
            f"{where}: got mscale = {scales[0]!r} and mscale_all_dim = {scales[1]!r} in {KEY}; supported are equal "
            "ones only; use a checkpoint whose cosines and sines are not scaled"
        )
    if not yarn.beta_slow <= yarn.beta_fast:
        raise CheckpointError(
            f"{where}: got beta_slow = {yarn.beta_slow} above beta_fast = {yarn.beta_fast} in {KEY}; correct the file"
        )
    rest = {name: left[name] for name in ("rope_theta",) if name in left}
    return {**raw, KEY: rest}, yarn


def _number(value: Any, name: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    if not is_number or (value == 0 and name != _QUERY_SCALE):
        got = f"{name} = {value!r}" if value is not None else f"no {name}"
        raise CheckpointError(f"{where}: got {got} in {KEY}; it must be a number above 0; correct the file")
    return float(value)
