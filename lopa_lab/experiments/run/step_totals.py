"""StepTotals: what the steps of some problems took, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from lopa_lab.records.intervals import Array, Resamples

DIGITS = 6
"""Of seconds that are kept: records stay small."""


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Seconds of phases, numbers of steps and so on: a list for each, with the sum over the steps of each problem."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, list[float]]) -> Self:
        """From what `as_json` gave."""
        return cls(dict(data))

    def as_json(self) -> dict[str, list[float]]:
        """A list per column."""
        return self.columns

    def add(self, problem: Mapping[str, float]) -> None:
        """Append the sums of one problem, which has the same columns as those before it."""
        for name, value in problem.items():
            self.columns.setdefault(name, []).append(round(value, DIGITS))

    def per(self, resamples: Resamples, below: str, *names: str) -> Array:
        """Σ of the columns `names` ÷ Σ of the column `below`: [1 + resamples], float64."""
        above = [sum(values) for values in zip(*(self.columns[name] for name in names), strict=True)]
        return resamples.quotient(above, self.columns[below])
