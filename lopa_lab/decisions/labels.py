"""Labelled questions: inputs with questions whose right answers are known, from a file of JSON lines.

    {"input": "Tom has 6 pens.", "questions": [
        {"type": "predicate", "instructions": "Does Tom have 6 pens?", "answer": true},
        {"type": "choice", "instructions": "Who?", "choices": [{"value": "Tom"}, {"value": "Mia"}], "answer": "Tom"},
        {"type": "score", "instructions": "How many?", "levels": [{"label": "few"}, {"label": "many"}], "answer": 0}]}

Inputs and questions are as in OpenAI's API. The answer of a score is a level's number or its label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.openai.decisions.request import DecisionsRequest
from cluster.openai.errors import ApiError, short_repr
from lopa_ray.decisions.encoded_input import DecisionInput
from lopa_ray.decisions.questions import (
    ChoiceQuestion,
    PredicateQuestion,
    Question,
    ScoreQuestion,
    options_of,
)
from lopa_ray.engine.decision_factory import DecisionTask
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import parse_json, read_text


@dataclass(frozen=True, slots=True)
class LabelledTask:
    """An input with its questions."""

    task: DecisionTask
    questions: tuple[Question, ...]
    right: tuple[int, ...]
    """Index of the right value of each question; of a predicate 0 is yes."""


def read_labelled(path: Path) -> list[LabelledTask]:
    """All lines of a file. Raises SettingsError, which names the line, and OSError."""
    tasks = []
    try:
        text = read_text(path)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
    # `splitlines` would also split at characters that JSON allows in a string, such as U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                tasks.append(_labelled(parse_json(line)))
            except (ValueError, ApiError) as error:
                raise SettingsError(f"{path}, line {number}: {error}") from None
    if not tasks:
        raise SettingsError(f"{path} has no labelled questions; write one input with its questions per line")
    return tasks


def _labelled(line: Any) -> LabelledTask:
    """Raises ValueError and ApiError for what is wrong."""
    if not isinstance(line, dict) or not isinstance(line.get("questions"), list):
        raise ValueError("got no object with input and questions")
    asked = [dict(question) if isinstance(question, dict) else question for question in line["questions"]]
    answers = [question.pop("answer", None) if isinstance(question, dict) else None for question in asked]
    message = DecisionsRequest.parse({**line, "questions": asked}).as_message("", "")
    given: DecisionInput = message.input
    right = (
        _right_index(question, answer, f"questions[{index}].answer")
        for index, (question, answer) in enumerate(zip(message.questions, answers, strict=True))
    )
    return LabelledTask(DecisionTask(given, message.questions), message.questions, tuple(right))


def _right_index(question: Question, answer: Any, field: str) -> int:
    if isinstance(question, PredicateQuestion):
        if not isinstance(answer, bool):
            raise ValueError(f"{field}: got {short_repr(answer)}; allowed: true, false")
        return 0 if answer else 1
    values = [option.value for option in options_of(question)]
    if isinstance(question, ScoreQuestion) and type(answer) is int and 0 <= answer < len(values):
        return answer
    for index, value in enumerate(values):
        if type(value) is type(answer) and value == answer:
            return index
    kind = (
        "a value of the choices" if isinstance(question, ChoiceQuestion) else "the number or label of a level"
    )
    raise ValueError(f"{field}: got {short_repr(answer)}; allowed: {kind}")
