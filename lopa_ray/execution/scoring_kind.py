"""Scoring of rows of logits: what the rows of one call have in common, and the numbers of each row."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Generic, NamedTuple, TypeVar

from lopa_ray.kernels.row_scores import RANKINGS
from lopa_ray.protocol.sampling_params import Ranking, SamplingParams
from lopa_ray.protocol.scoring import MEMORY_COLUMNS, Memory

Number = TypeVar("Number", int, float)

MIN_TEMPERATURE = 1e-6
"""Lower temperatures are replaced by this one, so that the division by them stays finite in fp32."""


class RowNumbers(NamedTuple, Generic[Number]):
    """The numbers of a row, fp64. The fields are the columns of a table of rows, in this order; see `COLUMN`."""

    # The first three are what `row_scores` reads.
    shape_temperature: Number  # temperature of probabilities and scores
    ranking: Number  # index of the ranking in `RANKINGS`
    is_half: Number  # whether logits are rounded to fp16
    draw_temperature: Number
    top_p: Number
    top_k: Number
    uniform: Number  # uniform random number of the draw
    bitmask: Number  # index of the row's set of allowed tokens
    target: Number  # the token whose probability is requested


COLUMN = RowNumbers(*range(len(RowNumbers._fields)))  # the index of each column


def row_numbers(params: SamplingParams) -> RowNumbers[float]:
    """The numbers of rows with these parameters. Draw, set of tokens and target are 0, and are set per row later."""
    draw = max(params.temperature, MIN_TEMPERATURE) if params.temperature > 0 else 1.0
    shape = params.confidence_temperature
    return RowNumbers(
        shape_temperature=draw if shape is None else max(shape, MIN_TEMPERATURE),
        ranking=RANKINGS.index(params.ranking),
        is_half=params.precision == "float16",
        draw_temperature=draw,
        top_p=params.top_p or 0.0,
        top_k=params.top_k or 1,
        uniform=0.0,
        bitmask=0.0,
        target=0.0,
    )


@dataclass(frozen=True, slots=True)
class ScoringKind:
    """The properties that all rows of one call have in common. Their `RowNumbers` differ."""

    precision: str = "float32"
    is_sampled: bool = False
    """Whether tokens are drawn at random; otherwise the most likely token is chosen."""
    has_temperature: bool = False
    """Whether probabilities and scores have a temperature."""
    has_draw_temperature: bool = False
    """Whether draws have another temperature than probabilities."""
    has_top_p: bool = False
    has_top_k: bool = False
    top_k_first: bool = False
    ranking: Ranking = "probability"
    top_logprobs: int = 0
    draws: bool = False
    """Whether the draw's log-probability and the entropy are requested."""
    is_constrained: bool = False
    has_logit_changes: bool = False
    """Whether there are penalties or biases."""
    is_fused: bool = False
    """Whether rows are scored by `row_scores`, which takes ranking and temperature of each row from its numbers."""
    has_targets: bool = False
    """Whether tokens are given, and only their probabilities are requested."""
    memory: type[Memory] = NoneType
    """What rules with memory ask of the rows, if they do."""
    has_candidates: bool = False
    """Whether several tokens are given, `top_logprobs` per row at most, whose log-probabilities are requested."""

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        vocab_size: int,
        *,
        is_constrained: bool,
        has_logit_changes: bool,
        memory: type[Memory] = NoneType,
    ) -> ScoringKind:
        """The kind of rows with these parameters: all greedy rows have the kind `GREEDY`."""
        is_sampled, shape = params.temperature > 0, params.confidence_temperature
        has_top_k = params.top_k is not None and params.top_k < vocab_size
        has_top_p = params.top_p is not None and params.top_p < 1.0
        kind = cls(
            precision=params.precision,
            is_sampled=is_sampled,
            has_temperature=is_sampled or shape is not None,
            has_draw_temperature=is_sampled and shape is not None,
            has_top_p=has_top_p,
            has_top_k=has_top_k,
            top_k_first=params.top_k_first and has_top_p and has_top_k,
            ranking=params.ranking,
            top_logprobs=params.top_logprobs,
            draws=params.draws,
            is_constrained=is_constrained,
            has_logit_changes=has_logit_changes,
            memory=memory,
        )
        return GREEDY if kind.is_greedy else kind

    @property
    def is_greedy(self) -> bool:
        """Whether `row_scores` can score the rows: the most likely token is chosen, without filters and changes."""
        return not (
            self.is_sampled
            or self.has_top_p
            or self.has_top_k
            or self.top_logprobs
            or self.draws
            or self.is_constrained
            or self.has_logit_changes
            or self.precision == "float64"
            or MEMORY_COLUMNS[self.memory]
        )


GREEDY = ScoringKind(is_fused=True)
"""The kind of all greedy rows. One call scores them together."""

TARGETS = ScoringKind(has_targets=True)  # the kind of all rows whose tokens are given


def candidates_kind(most: int) -> ScoringKind:
    """The kind of rows with up to `most` candidates each, padded so that steps have few kinds."""
    return ScoringKind(has_candidates=True, top_logprobs=1 << (most - 1).bit_length())
