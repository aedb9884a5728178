"""Problems in the grammar's wordings: true, and in no held-out wording."""

from __future__ import annotations

import random
import re

import pytest

from lopa_lab.word_problems import Problem, held_out_problems, is_correct
from lopa_lab.word_problems.grammar import number_in_words
from lopa_lab.word_problems.held_out_words import has_held_out_words
from lopa_lab.word_problems.told_stories import make_told_problem

pytestmark = pytest.mark.medium


def told_problems(seed: int, count: int) -> list[Problem]:
    rng = random.Random(seed)
    return [make_told_problem(rng) for _ in range(count)]


def numbers_told(question: str) -> set[int]:
    """Its numbers, in digits and in words."""
    numbers = {int(number) for number in re.findall(r"\d+", question)}
    words = {number_in_words(number): number for number in range(100)}
    for word in re.findall(r"[a-z]+(?:-[a-z]+)?", question.lower()):
        if word in words:
            numbers.add(words[word])
    return numbers


def test_every_calculation_is_true_and_of_numbers_that_are_told() -> None:
    for problem in told_problems(1, 500):
        known = numbers_told(problem.question)
        if re.search(
            r"half|halve|twice|double|pair|couple|equal|both|second", problem.question, re.IGNORECASE
        ):
            known |= {2, 3}
        calculations = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", problem.answer)
        assert calculations and "{" not in problem.question + problem.answer, problem
        for a, sign, b, result in calculations:
            left, right = int(a), int(b)
            assert {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[sign] == int(
                result
            )
            assert {left, right} <= known, problem
            known.add(int(result))
        assert is_correct(problem, problem.answer)
        assert problem.result == calculations[-1][3]


def test_no_held_out_wording_is_told() -> None:
    assert all(has_held_out_words(p.question) for p in held_out_problems(1, 200, held_out_words=True))
    assert not any(has_held_out_words(p.question) for p in held_out_problems(1, 200) + told_problems(2, 500))
