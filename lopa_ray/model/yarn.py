"""YaRN (arXiv 2309.00071), with the query scale of Ministral 3."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies of rotary embeddings that reach beyond the positions of an earlier training. Dims that turn less than
    `beta_slow` times within `original_max_position_embeddings` have `factor` times the wavelength, dims that turn more
    than `beta_fast` times keep theirs, and others lie between. At position p queries are multiplied by 1 +
    `llama_4_scaling_beta` · ln(1 + floor(p / `original_max_position_embeddings`))."""

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
        return {"rope_type": "yarn", "rope_theta": theta, "mscale": 1.0, "mscale_all_dim": 1.0, **numbers}
