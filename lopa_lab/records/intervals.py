"""Figures with intervals: percentile bootstrap over problems.

A figure is an array [1 + resamples]: its value over the problems as they are, and over each resample. Figures of the
same `Resamples` come from the same draws, so their differences, quotients and maxima are figures too, and pair the
problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lopa_ray.errors import SettingsError

Array: TypeAlias = npt.NDArray[np.float64]

RESAMPLES = 2000

FEWEST_PROBLEMS = 10
"""Intervals over fewer say little, and one over a single problem nothing; what rests on them is not stated."""

SEED = 0
"""Seeds the draws: the same record gives the same intervals."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; of one problem alone the interval has no width."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """`7.28 [6.90 to 7.70]` for the format `.2f` of each number."""
        return f"{self.value:{spec}} [{self.low:{spec}} to {self.high:{spec}}]"

    def change(self, neutral: float) -> str:
        """`rises`, `falls`, or `does not clearly change`, of a ratio (neutral: 1) or a difference (0)."""
        return self.against(neutral, "rises", "falls", "does not clearly change")

    def against(self, value: float, above: str, below: str, unclear: str) -> str:
        """The word for where the interval lies: above `value`, below it, or around it."""
        return above if self.low > value else below if self.high < value else unclear


class Resamples:
    """Draws of so many problems with replacement."""

    def __init__(self, problems: int, count: int = RESAMPLES, seed: int = SEED) -> None:
        """Raises ValueError without problems."""
        if problems < 1:
            raise ValueError("there are no problems to draw from")
        generator = np.random.default_rng(seed)
        times = generator.multinomial(problems, np.full(problems, 1 / problems), size=count)
        self._times: Array = np.vstack([np.ones((1, problems)), times])

    def total(self, values: Sequence[float]) -> Array:
        """Σ of a value per problem: [1 + resamples], float64."""
        totals: Array = self._times @ np.asarray(values, dtype=np.float64)
        return totals

    def quotient(self, numerators: Sequence[float], denominators: Sequence[float]) -> Array:
        """Σ numerators ÷ Σ denominators: [1 + resamples], float64; NaN where the denominators' sum is 0."""
        above, below = self.total(numerators), self.total(denominators)
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

    def mean(self, values: Sequence[float]) -> Array:
        """The mean of a value per problem: [1 + resamples], float64."""
        return self.total(values) / len(values)


def interval(figure: Array) -> tuple[float, float]:
    """Both ends of the 95 % interval of a figure [1 + resamples] of float64: NaN where every resample is NaN.

    Resamples in which the figure is NaN are left out.
    """
    known = figure[1:][~np.isnan(figure[1:])]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def estimate(figure: Array) -> Estimate:
    """The estimate of a figure [1 + resamples] of float64, with the interval of `interval`.

    Raises SettingsError if the value itself is NaN.
    """
    if np.isnan(figure[0]):
        raise SettingsError(
            "a figure of the experiment does not exist for these problems, because nothing was decoded that it counts; "
            "ask for more of them (--problems), or for longer answers (--set decode.max_new_tokens)"
        )
    return Estimate(float(figure[0]), *interval(figure))


def percent_of(part: Array, whole: Array) -> Array:
    """`part` as a share of `whole`, each [1 + resamples] of float64, in percent; NaN where `whole` is not above 0."""
    return 100 * np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)
