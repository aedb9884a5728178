"""Scores of probabilities, by arithmetic done by hand, and temperatures that calibrate."""

from __future__ import annotations

import math
import random

import pytest

from lopa_lab.decisions.scores import (
    Outcome,
    cross_fitted_temperatures,
    fit_temperature,
    scores_of,
)


def outcome(*probabilities: float, right: int) -> Outcome:
    return Outcome("choice", (tuple(math.log(p) for p in probabilities),), right)


def test_scores_of_three_questions() -> None:
    outcomes = [outcome(0.8, 0.2, right=0), outcome(0.65, 0.35, right=1), outcome(0.25, 0.75, right=1)]
    scores = scores_of(outcomes, [1.0] * 3)
    assert scores.count == 3 and scores.accuracy == pytest.approx(2 / 3)
    assert scores.brier == pytest.approx((2 * 0.2**2 + 2 * 0.65**2 + 2 * 0.25**2) / 3)
    assert scores.calibration_error == pytest.approx((abs(1 - 0.8) + abs(0 - 0.65) + abs(1 - 0.75)) / 3)
    assert [bin.count for bin in scores.bins] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 0]
    assert Outcome("choice", ((0.0, -1.0), (-1.0, 0.0)), 0).choices_by_order == {0, 1}


def test_questions_of_a_bin_are_taken_together() -> None:
    outcomes = [outcome(0.62, 0.38, right=0), outcome(0.66, 0.34, right=1)]
    scores = scores_of(outcomes, [1.0] * 2)
    assert scores.calibration_error == pytest.approx(abs(0.5 - 0.64))
    certain = scores_of([Outcome("score", ((0.0, -1000.0),), 0)], [1.0])
    assert certain.bins[-1].count == 1 and certain.calibration_error == 0.0


@pytest.mark.medium
@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_the_temperature_of_a_model_that_is_too_sure_or_too_unsure_is_found(temperature: float) -> None:
    """Right values are drawn from the softmax at that temperature."""
    draw = random.Random(1)
    outcomes = []
    for _ in range(4000):
        values = tuple(draw.gauss(0, 2) for _ in range(3))
        weights = [math.exp(value / temperature) for value in values]
        outcomes.append(Outcome("choice", (values,), draw.choices(range(3), weights)[0]))
    assert fit_temperature(outcomes) == pytest.approx(temperature, rel=0.1)
    fitted = cross_fitted_temperatures(outcomes)
    assert len(set(fitted)) == 2
    calibrated = scores_of(outcomes, fitted)
    assert calibrated.calibration_error < 0.03
    assert calibrated.brier <= scores_of(outcomes, [1.0] * len(outcomes)).brier + 1e-3


def test_no_question_is_scored_at_a_temperature_it_has_helped_to_fit() -> None:
    first, second = outcome(0.9, 0.1, right=0), outcome(0.9, 0.1, right=1)
    assert cross_fitted_temperatures([first, second]) == [fit_temperature([second]), fit_temperature([first])]
    assert cross_fitted_temperatures([first]) == [1.0]
