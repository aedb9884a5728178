"""ScoringKind: the properties that all rows of logits have in common that are scored in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lopa_ray.kernels.row_scores import RANKINGS
from lopa_ray.protocol.sampling_params import Ranking, SamplingParams

MIN_TEMPERATURE = 1e-6
"""Lower temperatures are replaced by this one, so that the division by them stays finite in fp32."""

SHAPE_TEMPERATURE, RANKING, HALF, DRAW_TEMPERATURE, TOP_P, TOP_K, UNIFORM, BITMASK, TARGET = range(9)
"""Columns of the numbers of a row: temperature of probabilities and scores, index of the ranking, whether logits are
rounded to fp16, temperature of draws, top p, top k, uniform random number of the draw, index of the row's set of
allowed tokens, and the token whose probability is requested."""

NUMBER_COLUMNS = 9


@dataclass(frozen=True, slots=True)
class ScoringKind:
    """How rows are scored. The numbers (see `SHAPE_TEMPERATURE` and the others) differ from row to row."""

    precision: str = "float32"
    is_sampled: bool = False
    """Whether tokens are drawn at random; otherwise the most likely token is chosen."""
    has_temperature: bool = False
    """Whether probabilities and scores have a temperature."""
    has_draw_temperature: bool = False
    """Whether draws have a temperature other than that of probabilities."""
    has_top_p: bool = False
    has_top_k: bool = False
    top_k_first: bool = False
    ranking: Ranking = "probability"
    top_logprobs: int = 0
    is_constrained: bool = False
    has_logit_changes: bool = False
    """Whether there are penalties or biases."""
    is_fused: bool = False
    """Whether rows are scored by `row_scores`, which takes ranking and temperature of each row from its numbers."""
    has_targets: bool = False
    """Whether tokens are given, and only their probabilities are requested."""

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
        """Whether `row_scores` can score the rows: the most likely token is chosen, without filters and changes."""
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
        """The numbers of rows, fp64 [9] (see `SHAPE_TEMPERATURE` and the others).

        The draw, the set of tokens and the target are 0, and are set per row later.
        """
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
"""The kind of all greedy rows. One call scores them together."""

TARGETS = ScoringKind(has_targets=True)
"""The kind of all rows whose tokens are given."""
