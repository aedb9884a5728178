"""Outcomes of decoding some problems, problem by problem, and StepTotals of what is summed over steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lopa_lab.records.intervals import Array, Resamples, estimate

Name = TypeVar("Name", bound=Hashable)

DIGITS = 6
"""Decimals of seconds that are kept: records stay small."""


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

    def tpf(self, resamples: Resamples) -> Array:
        """Σ tokens ÷ Σ steps: [1 + resamples], float64."""
        return resamples.quotient(self.tokens, self.steps)

    def score(self, resamples: Resamples) -> Array:
        """Share of problems with a right answer, in percent: [1 + resamples], float64."""
        return 100 * resamples.mean(self.correct)

    def forwards_per_token(self, resamples: Resamples) -> Array:
        """Σ branch evaluations ÷ Σ tokens: [1 + resamples], float64."""
        return resamples.quotient(self.forwards, self.tokens)


class Figures(Generic[Name]):
    """TPF, score and forwards per token of several outcomes, by name, over the same resamples."""

    def __init__(self, outcomes: Mapping[Name, Outcomes], resamples: Resamples) -> None:
        self.tpf = {name: outcome.tpf(resamples) for name, outcome in outcomes.items()}
        """[1 + resamples] of float64 each, as `score` and `forwards`."""
        self.score = {name: outcome.score(resamples) for name, outcome in outcomes.items()}
        self.forwards = {name: outcome.forwards_per_token(resamples) for name, outcome in outcomes.items()}

    def columns(self) -> dict[str, list[str]]:
        """Header → cells of a column of a finding's table."""
        return {
            "TPF": column(self.tpf.values(), ".2f"),
            "score %": column(self.score.values(), ".1f"),
            "forwards per token": column(self.forwards.values(), ".2f"),
        }


def column(figures: Iterable[Array], spec: str) -> list[str]:
    """Cells with the estimates of figures [1 + resamples] of float64, each number in the format `spec`."""
    return [f"{estimate(figure):{spec}}" for figure in figures]


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Seconds of phases, numbers of steps and so on: a list of each, a number per problem or round of problems."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def add(self, problem: Mapping[str, float]) -> None:
        """Append the numbers of one problem or round, which has the same columns as the others."""
        for name, value in problem.items():
            self.columns.setdefault(name, []).append(round(value, DIGITS))

    def per(self, resamples: Resamples, below: str, *names: str) -> Array:
        """Σ of the columns `names` ÷ Σ of the column `below`: [1 + resamples], float64."""
        above = [sum(values) for values in zip(*(self.columns[name] for name in names), strict=True)]
        return resamples.quotient(above, self.columns[below])
