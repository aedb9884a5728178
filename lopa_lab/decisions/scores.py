"""Scores of probabilities: accuracy, Brier score, calibration error; and the temperature that calibrates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lopa_ray.config.decision_settings import DecisionType
from lopa_ray.decisions.answers import probabilities_of

BINS = 10
"""Bins of the expected calibration error, of equal width."""

TEMPERATURES = (0.05, 20.0)
"""The range in which a temperature is searched."""

SEARCH_STEPS = 60
"""Each makes the range smaller by the golden ratio."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question with its right value, and what the model says."""

    type: DecisionType
    log_likelihoods: tuple[tuple[float, ...], ...]
    """Log-likelihoods of the values, in each of their orders; see `DecisionResult.log_likelihoods`."""
    right: int

    def probabilities(self, temperature: float) -> list[float]:
        """The probabilities of the values."""
        return probabilities_of(self.log_likelihoods, temperature)

    @property
    def choices_by_order(self) -> set[int]:
        """The most probable values by each order alone."""
        return {values.index(max(values)) for values in self.log_likelihoods}


@dataclass(frozen=True, slots=True)
class Bin:
    """Questions whose most probable value has a probability of a range."""

    low: float
    high: float
    count: int
    accuracy: float
    """Share of them whose most probable value is right; 0 of none."""
    confidence: float
    """Mean probability of their most probable value; 0 of none."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of questions at a temperature."""

    count: int
    accuracy: float
    """Share whose most probable value is right."""
    brier: float
    """Mean over the questions of Σ over the values (p - 1 for the right one, p - 0 for others)²: 0 to 2."""
    calibration_error: float
    """Expected calibration error: mean over the questions of |accuracy - confidence| of their bin."""
    bins: tuple[Bin, ...]


def scores_of(outcomes: Sequence[Outcome], temperatures: Sequence[float]) -> Scores:
    """The scores, each question at its temperature. Raises ValueError for no questions."""
    if not outcomes:
        raise ValueError("there are no questions to score")
    tops: list[tuple[float, bool]] = []
    brier = 0.0
    for outcome, temperature in zip(outcomes, temperatures, strict=True):
        probabilities = outcome.probabilities(temperature)
        best = probabilities.index(max(probabilities))
        tops.append((probabilities[best], best == outcome.right))
        brier += sum((p - (at == outcome.right)) ** 2 for at, p in enumerate(probabilities))
    bins = _bins(tops)
    return Scores(
        count=len(outcomes),
        accuracy=sum(is_right for _, is_right in tops) / len(tops),
        brier=brier / len(outcomes),
        calibration_error=sum(bin.count * abs(bin.accuracy - bin.confidence) for bin in bins) / len(tops),
        bins=bins,
    )


def _bins(tops: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    bins = []
    for low, high in pairwise(at / BINS for at in range(BINS + 1)):
        inside = [top for top in tops if low <= top[0] < high or (high == 1.0 and top[0] >= 1.0)]
        count = len(inside)
        accuracy = sum(is_right for _, is_right in inside) / count if count else 0.0
        confidence = sum(probability for probability, _ in inside) / count if count else 0.0
        bins.append(Bin(low, high, count, accuracy, confidence))
    return tuple(bins)


def fit_temperature(outcomes: Sequence[Outcome]) -> float:
    """The temperature at which the right values are most probable, by golden-section search over its logarithm."""

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        return -sum(
            math.log(max(outcome.probabilities(temperature)[outcome.right], 1e-300)) for outcome in outcomes
        )

    ratio = (math.sqrt(5) - 1) / 2
    low, high = map(math.log, TEMPERATURES)
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    of_left, of_right = loss(left), loss(right)
    for _ in range(SEARCH_STEPS):
        if of_left <= of_right:
            high, right, of_right = right, left, of_left
            left = high - ratio * (high - low)
            of_left = loss(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + ratio * (high - low)
            of_right = loss(right)
    return math.exp((low + high) / 2)


def cross_fitted_temperatures(outcomes: Sequence[Outcome]) -> list[float]:
    """The temperature of each question, by the other half of the questions, so that no question is scored at a
    temperature that it has helped to fit. Halves are every second question; a single question gets 1."""
    halves = [outcomes[0::2], outcomes[1::2]]
    if not halves[1]:
        return [1.0] * len(outcomes)
    fitted = [fit_temperature(half) for half in halves]
    return [fitted[1 - at % 2] for at in range(len(outcomes))]
