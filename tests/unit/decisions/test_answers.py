"""Answers: from log-likelihoods to probabilities, by arithmetic that is done here by hand."""

from __future__ import annotations

import math

import pytest

from lopa_ray import ChoiceQuestion, PredicateQuestion, ScoreQuestion
from lopa_ray.decisions.answers import (
    ChoiceAnswer,
    PredicateAnswer,
    ScoreAnswer,
    answer,
    confidence_of,
    probabilities_of,
)


def test_probabilities_are_a_softmax() -> None:
    assert probabilities_of([[0.0, math.log(3)]]) == pytest.approx([0.25, 0.75])
    assert probabilities_of([[-1000.0, -1000.0 + 2 * math.log(3)]], 2.0) == pytest.approx([0.25, 0.75])
    assert probabilities_of([[0.0, math.log(3)], [0.0, 0.0]]) == pytest.approx([0.375, 0.625])


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [([0.25] * 4, 0.0), ([0.0, 1.0, 0.0], 1.0), ([0.5, 0.25, 0.25], 0.25), ([1.0], 1.0), ([0.75, 0.25], 0.5)],
)
def test_confidence_is_0_where_all_are_alike_and_1_where_one_is_certain(
    probabilities: list[float], confidence: float
) -> None:
    assert confidence_of(probabilities) == pytest.approx(confidence)


def test_the_answer_of_each_type() -> None:
    three = [[0.0, math.log(2), 0.0]]
    choice = answer(ChoiceQuestion("?", ["true", True, "c"], name="n"), three)
    assert isinstance(choice, ChoiceAnswer) and choice.choice is True and choice.name == "n"
    assert choice.probabilities == pytest.approx({"true": 0.25, True: 0.5, "c": 0.25})
    assert choice.confidence == pytest.approx(0.25)
    score = answer(ScoreQuestion("?", ["low", "middle", "high"]), [[0.0, 0.0, math.log(2)]])
    assert isinstance(score, ScoreAnswer) and score.score == pytest.approx(0.25 + 2 * 0.5)
    assert score.probabilities == pytest.approx({"low": 0.25, "middle": 0.25, "high": 0.5})
    yes = answer(PredicateQuestion("?"), [[math.log(9), 0.0]])
    assert yes == PredicateAnswer(None, pytest.approx(0.9))


def test_log_likelihoods_are_divided_by_a_temperature() -> None:
    yes = answer(PredicateQuestion("?"), [[math.log(9), 0.0]], 2.0)
    assert yes == PredicateAnswer(None, pytest.approx(0.75))


def test_of_equal_values_the_first_one_is_chosen() -> None:
    choice = answer(ChoiceQuestion("?", ["a", "b"]), [[0.0, 0.0]])
    assert isinstance(choice, ChoiceAnswer) and choice.choice == "a" and choice.confidence == 0.0
