"""The numbers of problems: how they are drawn, and the calculations of an answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from lopa_lab.word_problems.stories import FACTOR, NUMBER, ONE_DIGIT

LARGEST = 999
"""The largest number, and the largest result."""
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else -1,
}


def draw_number(rng: random.Random, kind: str) -> int:
    """A number of one of the ranges of `kind`."""
    chance = rng.random()
    if kind == ONE_DIGIT:
        return rng.randint(2, 9)
    if kind == FACTOR:
        return rng.randint(2, 9) if chance < 0.75 else rng.randint(10, 30 if chance < 0.95 else 99)
    assert kind == NUMBER
    return (
        rng.randint(2, 9)
        if chance < 0.35
        else rng.randint(10, 99)
        if chance < 0.87
        else rng.randint(100, LARGEST)
    )


def solve(answer: str, numbers: Mapping[str, int]) -> tuple[str, int, int] | None:
    """The answer with its calculations written out, the last result and the largest one; None for one out of range.

    Results from 1 to `LARGEST` are in range.
    """
    known = dict(numbers)
    result = largest = 0

    def calculate(match: re.Match[str]) -> str:
        nonlocal result, largest
        name, left, operation, right = match.groups()
        second = int(right) if right.isdigit() else known[right]
        result = OPERATIONS[operation](known[left], second)
        if not 1 <= result <= LARGEST:
            raise ArithmeticError
        largest = max(largest, result)
        known[name] = result
        return f"{known[left]}{operation}{second}={result}"

    try:
        text = re.sub(r"\[(\w)=(\w)([-+*/])(\w)\]", calculate, answer)
    except ArithmeticError:
        return None
    return text, result, largest
