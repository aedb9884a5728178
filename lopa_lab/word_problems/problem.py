"""A word problem with its worked answer, and how a text is graded."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its worked answer and the number that the answer ends with."""

    question: str
    answer: str
    result: str


def extract_answer(text: str) -> str | None:
    """The number after the last `####`, or None."""
    numbers = re.findall(r"####\s*(-?\d+)", text)
    return numbers[-1] if numbers else None


def is_correct(problem: Problem, text: str) -> bool:
    """Whether a generated text ends with the right number."""
    return extract_answer(text) == problem.result
