"""The wording of decisions: typed questions about an input, each answered by a label in masked positions.

A question is one more message of the user's, so the input is read once for all of its questions. The labels of one
question are equally long, so that they fill as many slots. The model in the package is trained on these wordings.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass

YES, NO = "yes", "no"  # the labels of a predicate
LETTERS = string.ascii_uppercase  # the labels of up to 26 choices
PREDICATE, CHOICE, LEVEL = "Is this so?", "Which choice fits?", "Which level fits?"
"""The instructions of a question that gives none."""


@dataclass(frozen=True, slots=True)
class DecisionQuestion:
    message: str
    labels: tuple[str, ...]  # in the order of the choices or levels; yes, then no, for a predicate


def predicate_question(instructions: str, yes: str | None = None, no: str | None = None) -> DecisionQuestion:
    """A question that is answered by yes or no, with what counts as one of them if that is given."""
    meanings = [f"\n{label}: {text}" for label, text in ((YES, yes), (NO, no)) if text is not None]
    return DecisionQuestion(f"{instructions}{''.join(meanings)}\nAnswer yes or no.", (YES, NO))


def choice_question(instructions: str, choices: Sequence[str]) -> DecisionQuestion:
    """Ask which of the choices fits. Their labels are letters, or where there are too few of them numbers from
    1. Raises ValueError for none."""
    labels = LETTERS[: len(choices)] if len(choices) <= len(LETTERS) else _numbers(1, len(choices) + 1)
    return _listing(instructions, labels, choices, "Answer with the label of one choice.")


def level_question(instructions: str, levels: Sequence[str]) -> DecisionQuestion:
    """Ask which of the ordered levels fits; their labels are numbers from 0. Raises ValueError for none."""
    return _listing(instructions, _numbers(0, len(levels)), levels, "Answer with the number of one level.")


def value_text(value: str | bool) -> str:
    """A choice's value as text, in which no two values look alike: `true` is the boolean, `"true"` the text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        json.dumps(value, ensure_ascii=False)
        if value in ("true", "false") or value.startswith('"')
        else value
    )


def described(text: str, description: str | None) -> str:
    return text if description is None else f"{text}: {description}"


def _numbers(start: int, stop: int) -> Sequence[str]:
    return [str(number).zfill(len(str(stop - 1))) for number in range(start, stop)]


def _listing(instructions: str, labels: Sequence[str], texts: Sequence[str], asked: str) -> DecisionQuestion:
    if not texts:
        raise ValueError("a question needs possible answers, got none")
    listed = "\n".join(f"{label}: {text}" for label, text in zip(labels, texts, strict=True))
    return DecisionQuestion(f"{instructions}\n{listed}\n{asked}", tuple(labels))
