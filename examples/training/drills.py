"""Drills: calculations with nothing around them, among the training problems."""

from __future__ import annotations

import random

from lopa_lab.word_problems import Problem
from lopa_lab.word_problems.calculation import LARGEST, OPERATIONS, draw_number
from lopa_lab.word_problems.stories import FACTOR, NUMBER, ONE_DIGIT

SPELLINGS = {
    "+": ("+", " + ", " plus "),
    "-": ("-", " - ", " minus "),
    "*": ("*", " * ", " times "),
    "/": ("/", " / ", " divided by "),
}
"""Signs, as a drill's question may write them."""


def make_drill(rng: random.Random) -> Problem:
    """One to four calculations with nothing around them, which takes few tokens per calculation."""
    done = [draw_calculation(rng) for _ in range(rng.choice((1, 2, 4, 4, 4, 4)))]
    question = f"Work out {', '.join(calculation for calculation, _ in done)}."
    if len(done) == 1:
        spelled = "".join(rng.choice(SPELLINGS.get(sign, (sign,))) for sign in done[0][0])
        question = rng.choice(("What is {}?", "{} = ?", "How much is {}?", "Calculate {}.", "{}")).format(
            spelled
        )
    answer = ". ".join(f"{calculation}={result}" for calculation, result in done)
    return Problem(question, f"{answer}.\n#### {done[-1][1]}", str(done[-1][1]))


def draw_calculation(rng: random.Random) -> tuple[str, int]:
    """A calculation like those of answers, such as `12*8`, and its result."""
    while True:
        operation = rng.choice("++--*/")
        a, b = draw_number(rng, FACTOR if operation in "*/" else NUMBER), draw_number(rng, NUMBER)
        if operation in "*/":
            b = draw_number(rng, ONE_DIGIT)
        if operation == "/":
            a *= b
        if 1 <= a <= LARGEST and 1 <= (result := OPERATIONS[operation](a, b)) <= LARGEST:
            return f"{a}{operation}{b}", result
