"""ScoringKind: what rows of logits have in common that are scored in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lopa_ray.kernels.row_scores import RANKINGS
from lopa_ray.protocol.sampling_params import Ranking, SamplingParams

MIN_TEMPERATURE = 1e-6
"""Lower temperatures act like this one, so that the division stays finite in fp32."""

SHAPE_TEMPERATURE, RANKING, HALF, DRAW_TEMPERATURE, TOP_P, TOP_K, UNIFORM, BITMASK, TARGET = range(9)
"""Columns of the numbers of a row: temperature of probabilities and scores, ranking, whether logits are rounded to
fp16, temperature of draws, nucleus, top k, the draw, its set of tokens, the token whose probability is asked for."""

NUMBER_COLUMNS = 9


@dataclass(frozen=True, slots=True)
class ScoringKind:
    """How rows are scored; the numbers of it differ from row to row."""

    precision: str = "float32"
    is_sampled: bool = False
    has_temperature: bool = False
    """Of probabilities and scores."""
    has_draw_temperature: bool = False
    """Draws have a temperature other than that of probabilities."""
    has_top_p: bool = False
    has_top_k: bool = False
    top_k_first: bool = False
    ranking: Ranking = "probability"
    top_logprobs: int = 0
    is_constrained: bool = False
    has_logit_changes: bool = False
    """Penalties or biases."""
    is_fused: bool = False
    """Scored by `row_scores`, which takes ranking and temperature of each row from its numbers."""
    has_targets: bool = False
    """Tokens are given, and only their probabilities are asked for."""

    @classmethod
    def of(
        cls, params: SamplingParams, vocab_size: int, *, is_constrained: bool, has_logit_changes: bool
    ) -> Self:
        """The kind of rows with these parameters."""
        is_sampled, shape = params.temperature > 0, params.confidence_temperature
        has_top_k = params.top_k is not None and params.top_k < vocab_size
        has_top_p = params.top_p is not None and params.top_p < 1.0
        return cls(
            params.precision,
            is_sampled,
            is_sampled or shape is not None,
            is_sampled and shape is not None,
            has_top_p,
            has_top_k,
            params.top_k_first and has_top_p and has_top_k,
            params.ranking,
            params.top_logprobs,
            is_constrained,
            has_logit_changes,
        )

    @property
    def is_greedy(self) -> bool:
        """Whether `row_scores` can do it: the most likely token, and nothing is filtered or changed."""
        return not (
            self.is_sampled
            or self.has_top_p
            or self.has_top_k
            or self.top_logprobs
            or self.is_constrained
            or self.has_logit_changes
            or self.precision == "float64"
        )

    @staticmethod
    def numbers(params: SamplingParams) -> tuple[float, ...]:
        """fp64 [9] (see `SHAPE_TEMPERATURE` and the others), but for the draw, the set of tokens and the target."""
        draw = max(params.temperature, MIN_TEMPERATURE) if params.temperature > 0 else 1.0
        shape = params.confidence_temperature
        return (
            draw if shape is None else max(shape, MIN_TEMPERATURE),
            RANKINGS.index(params.ranking),
            params.precision == "float16",
            draw,
            params.top_p or 0.0,
            params.top_k or 1,
            0.0,
            0.0,
            0.0,
        )


GREEDY = ScoringKind(is_fused=True)
"""Of all greedy rows: one call scores them together."""

TARGETS = ScoringKind(has_targets=True)
"""Of all rows whose tokens are given."""
