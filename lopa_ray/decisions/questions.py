"""The three types of questions, and what the model is asked for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lopa_ray.errors import PromptError
from lopa_ray.text.decision_prompt import (
    CHOICE,
    LEVEL,
    PREDICATE,
    DecisionQuestion,
    choice_question,
    described,
    level_question,
    predicate_question,
    value_text,
)

Value: TypeAlias = str | bool  # a choice's value; the text `"true"` and the boolean are two values
MAX_QUESTIONS = 400  # questions about one input, at most
MAX_VALUES = 255  # choices or levels of a question, at most


@dataclass(frozen=True, slots=True)
class Option:
    """A choice or a level, and when it applies."""

    value: Value
    """The value; of a level its label, a text."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class PredicateQuestion:
    """Asks how likely a statement about the input is to be true, or the answer to a question to be yes."""

    instructions: str | None
    name: str | None = None
    yes: str | None = None
    """A description of what counts as yes."""
    no: str | None = None
    """A description of what counts as no."""


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """Asks which of some choices fits."""

    instructions: str | None
    choices: Sequence[Option | Value]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """Asks which of some ordered levels fits; the answer is the mean of their numbers, from 0 on."""

    instructions: str | None
    levels: Sequence[Option | str]
    name: str | None = None


Question: TypeAlias = PredicateQuestion | ChoiceQuestion | ScoreQuestion


def options_of(question: ChoiceQuestion | ScoreQuestion) -> tuple[Option, ...]:
    given = question.choices if isinstance(question, ChoiceQuestion) else question.levels
    return tuple(option if isinstance(option, Option) else Option(option) for option in given)


def orders_of(question: Question, rotations: int) -> list[tuple[int, ...]]:
    """The orders in which a question lists its values, at most `rotations`: index of a value in each place."""
    if not isinstance(question, ChoiceQuestion):
        return [tuple(range(2 if isinstance(question, PredicateQuestion) else len(question.levels)))]
    count = len(question.choices)
    used = min(rotations, count)
    firsts = (count * rotation // used for rotation in range(used))
    return [tuple((first + at) % count for at in range(count)) for first in firsts]


def wording(question: Question, order: Sequence[int]) -> DecisionQuestion:
    """The question as the model is asked, with the values in that order; label i belongs to value `order[i]`."""
    if isinstance(question, PredicateQuestion):
        return predicate_question(question.instructions or PREDICATE, question.yes, question.no)
    texts = [described(value_text(option.value), option.description) for option in options_of(question)]
    listed = [texts[index] for index in order]
    if isinstance(question, ChoiceQuestion):
        return choice_question(question.instructions or CHOICE, listed)
    return level_question(question.instructions or LEVEL, listed)


def check_questions(questions: Sequence[Question]) -> None:
    """Raises PromptError, whose `setting` is the field, for too many questions or values, none, or values alike."""
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        allowed = f"allowed: 1 to {MAX_QUESTIONS}; split the request"
        raise field_error("questions", f"got {len(questions)}; {allowed}")
    for index, question in enumerate(questions):
        if isinstance(question, PredicateQuestion):
            continue
        name = "choices" if isinstance(question, ChoiceQuestion) else "levels"
        field, options = f"questions[{index}].{name}", options_of(question)
        if not 1 <= len(options) <= MAX_VALUES:
            raise field_error(field, f"got {len(options)}; allowed: 1 to {MAX_VALUES}")
        values = [(type(option.value), option.value) for option in options]
        for at, value in enumerate(values):
            if value in values[:at]:
                raise field_error(f"{field}[{at}]", f"got {value[1]!r} twice; each needs a value of its own")


def field_error(field: str, message: str) -> PromptError:
    error = PromptError(f"{field}: {message}")
    error.setting = field
    return error
