"""Questions: what the model is asked, orders of choices, and what is refused before anything is computed."""

from __future__ import annotations

import pytest

from lopa_ray import ChoiceQuestion, Option, PredicateQuestion, PromptError, ScoreQuestion
from lopa_ray.decisions.questions import MAX_QUESTIONS, Question, check_questions, orders_of, wording
from lopa_ray.text.decision_prompt import value_text

KINDS = ChoiceQuestion("Which kind is it?", ["bill", Option("other", "anything else")])


def test_the_wordings() -> None:
    assert wording(PredicateQuestion("Is it urgent?"), (0, 1)).message == "Is it urgent?\nAnswer yes or no."
    asked = PredicateQuestion(None, yes="it says so", no="it does not")
    assert (
        wording(asked, (0, 1)).message == "Is this so?\nyes: it says so\nno: it does not\nAnswer yes or no."
    )
    asked_of = wording(KINDS, (1, 0))
    assert asked_of.message == (
        "Which kind is it?\nA: other: anything else\nB: bill\nAnswer with the label of one choice."
    )
    assert asked_of.labels == ("A", "B")
    levels = wording(ScoreQuestion("How many?", ["few", "many"]), (0, 1))
    assert levels.message == "How many?\n0: few\n1: many\nAnswer with the number of one level."
    assert wording(ScoreQuestion("?", [str(level) for level in range(11)]), range(11)).labels[:2] == (
        "00",
        "01",
    )
    numbers = wording(ChoiceQuestion("?", [str(value) for value in range(27)]), range(27)).labels
    assert numbers[0] == "01" and numbers[-1] == "27"


def test_no_two_values_are_written_alike() -> None:
    values = ["true", True, "false", False, '"true"', '""true""', "True", "", '"', '"\\"true\\""']
    assert len({value_text(value) for value in values}) == len(values)
    assert value_text(True) == "true" and value_text("true") == '"true"' and value_text("red") == "red"


def test_choices_alone_are_rotated() -> None:
    four = ChoiceQuestion("?", ["a", "b", "c", "d"])
    assert orders_of(four, 1) == [(0, 1, 2, 3)]
    assert orders_of(four, 2) == [(0, 1, 2, 3), (2, 3, 0, 1)]
    assert len(orders_of(four, 100)) == 4
    assert orders_of(ScoreQuestion("?", ["a", "b", "c"]), 3) == [(0, 1, 2)]
    assert orders_of(PredicateQuestion("?"), 3) == [(0, 1)]


@pytest.mark.parametrize(
    ("questions", "field"),
    [
        ([], "questions"),
        ([PredicateQuestion("?")] * (MAX_QUESTIONS + 1), "questions"),
        ([PredicateQuestion("?"), ChoiceQuestion("?", [])], "questions[1].choices"),
        ([ScoreQuestion("?", [])], "questions[0].levels"),
        ([ChoiceQuestion("?", list(map(str, range(256))))], "questions[0].choices"),
        ([ChoiceQuestion("?", ["a", "b", "a"])], "questions[0].choices[2]"),
        ([ScoreQuestion("?", ["a", "a"])], "questions[0].levels[1]"),
    ],
)
def test_what_is_wrong_is_named(questions: list[Question], field: str) -> None:
    with pytest.raises(PromptError) as raised:
        check_questions(questions)
    assert raised.value.setting == field and str(raised.value).startswith(field)


def test_a_text_and_a_boolean_are_two_values() -> None:
    check_questions([ChoiceQuestion("?", ["true", True])])
