"""Outcomes: what decoding some problems came to, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from lopa_lab.records.intervals import Array, Resamples
from lopa_ray.decoding.result import GenerationResult


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A number per problem in each list. `TPF`, `score` and so on are arrays over resamples; see `Resamples`."""

    tokens: list[int]
    """Up to and including the first EOS."""
    steps: list[int]
    forwards: list[int]
    """Branch evaluations."""
    correct: list[int]
    """1 for a right answer, else 0."""

    @classmethod
    def of(cls, results: Sequence[GenerationResult], correct: Sequence[bool]) -> Self:
        """Of decoded problems."""
        return cls(
            [each.tokens for each in results],
            [each.steps for each in results],
            [each.forwards for each in results],
            [int(each) for each in correct],
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From what `as_json` gave."""
        return cls(data["tokens"], data["steps"], data["forwards"], data["correct"])

    def as_json(self) -> dict[str, list[int]]:
        """A list per name."""
        return asdict(self)

    def tpf(self, resamples: Resamples) -> Array:
        """Σ tokens ÷ Σ steps: [1 + resamples], float64."""
        return resamples.quotient(self.tokens, self.steps)

    def score(self, resamples: Resamples) -> Array:
        """Share of problems with a right answer, in percent: [1 + resamples], float64."""
        return 100 * resamples.mean(self.correct)

    def forwards_per_token(self, resamples: Resamples) -> Array:
        """Σ branch evaluations ÷ Σ tokens: [1 + resamples], float64."""
        return resamples.quotient(self.forwards, self.tokens)
