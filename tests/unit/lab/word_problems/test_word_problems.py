"""The generator of the demo model's problems: deterministic, true, split, and short enough."""

from __future__ import annotations

import itertools
import re

import pytest

from demo_tokenizer import chat_prompt
from lopa_lab.word_problems import (
    Problem,
    extract_answer,
    held_out_problems,
    is_correct,
    training_problems,
)
from lopa_lab.word_problems.calculation import LARGEST
from lopa_lab.word_problems.generator import is_held_out
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.text.tokenizer import Tokenizer

pytestmark = pytest.mark.medium

ANSWER = 64


def training(seed: int, count: int) -> list[Problem]:
    return list(itertools.islice(training_problems(seed), count))


def calculations(problem: Problem) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", problem.answer)
    return [(int(a), operation, int(b), int(result)) for a, operation, b, result in found]


def test_a_seed_gives_the_same_problems() -> None:
    assert training(5, 50) == training(5, 50)
    assert training(5, 50) != training(6, 50)
    assert held_out_problems(5, 20) == held_out_problems(5, 20)


def test_every_calculation_is_true_and_the_last_one_is_the_answer() -> None:
    for problem in (
        training(1, 300) + held_out_problems(1, 100) + held_out_problems(1, 100, held_out_words=True)
    ):
        found = calculations(problem)
        assert 1 <= len(found) <= 4
        for a, operation, b, result in found:
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operation] == result
            assert 1 <= result <= LARGEST
        assert problem.answer.endswith(f"\n#### {found[-1][3]}")
        assert problem.result == str(found[-1][3])
        assert is_correct(problem, problem.answer)


def test_the_question_tells_every_number_that_was_not_calculated() -> None:
    for problem in training(2, 300):
        told = set(re.findall(r"\d+", problem.question))
        if re.search(r"\b([Hh]alf|twice)\b", problem.question):
            told.add("2")
        for a, _, b, result in calculations(problem):
            assert {str(a), str(b)} <= told
            told.add(str(result))


def test_held_out_problems_are_no_training_problems() -> None:
    held_out = held_out_problems(3, 300)
    questions = {problem.question for problem in held_out}
    assert len(questions) == 300
    assert all(map(is_held_out, questions))
    assert not any(is_held_out(problem.question) for problem in training(0, 1000))


def test_prompts_and_answers_fit_under_the_shipped_tokenizer() -> None:
    tokenizer = Tokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer is not None
    for problem in training(4, 300):
        assert len(tokenizer.encode(problem.answer)) < ANSWER
        chat = tokenizer.apply_chat_template([{"role": "user", "content": problem.question}])
        assert tokenizer.decode(chat, skip_special_tokens=False) == chat_prompt(problem.question)
        assert tokenizer.decode(tokenizer.encode(problem.answer)) == problem.answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3*4=12\n#### 12", "12"),
        ("#### 7\n#### 8", "8"),
        ("####12", "12"),
        ("#### -3", "-3"),
        ("the answer is 12", None),
        ("", None),
        ("#### ", None),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer
