"""Drills: calculations with nothing around them, among the training problems."""

from __future__ import annotations

import random

from lopa_lab.word_problems import Problem
from lopa_lab.word_problems.calculation import LARGEST, OPERATIONS, draw_number
from lopa_lab.word_problems.stories import FACTOR, NUMBER, ONE_DIGIT

SPELLINGS = {
    "+": ("+", " + ", " plus "),
    "-": ("-", " - ", " minus "),
    "*": ("*", " * ", " times ", "x", " x "),
    "/": ("/", " / ", " divided by "),
}
"""Signs, as a drill's question may write them."""
NAMES = {
    "+": ("the sum of {} and {}", "the total of {} and {}"),
    "-": ("the difference between {} and {}", "{} less {}"),
    "*": ("the product of {} and {}", "{} multiplied by {}"),
    "/": ("{} shared by {}", "the quotient of {} and {}"),
}
"""Names of a calculation of two numbers in a drill's question."""
LARGE_SHARE = 0.5
"""The share of additions and subtractions whose numbers have three digits: what the model gets wrong most often."""


def make_drill(rng: random.Random) -> Problem:
    """One to four calculations with nothing around them, which takes few tokens per calculation."""
    done = [draw_calculation(rng) for _ in range(rng.choice((1, 2, 4, 4, 4, 4)))]
    question = f"Work out {', '.join(f'{a}{sign}{b}' for a, sign, b, _ in done)}."
    if len(done) == 1:
        a, sign, b, _ = done[0]
        named = rng.random() < 0.4
        told = rng.choice(NAMES[sign]).format(a, b) if named else f"{a}{rng.choice(SPELLINGS[sign])}{b}"
        question = rng.choice(("What is {}?", "{} = ?", "How much is {}?", "Calculate {}.", "{}")).format(
            told
        )
    answer = ". ".join(f"{a}{sign}{b}={result}" for a, sign, b, result in done)
    return Problem(question, f"{answer}.\n#### {done[-1][3]}", str(done[-1][3]))


def draw_calculation(rng: random.Random) -> tuple[int, str, int, int]:
    """A calculation as in answers, such as `12*8`: number, sign, number, result."""
    while True:
        sign = rng.choice("++---*/")
        a, b = draw_number(rng, FACTOR if sign in "*/" else NUMBER), draw_number(rng, NUMBER)
        if sign in "*/":
            b = draw_number(rng, ONE_DIGIT)
        elif rng.random() < LARGE_SHARE:
            a = rng.randint(100, LARGEST)
            b = rng.randint(2, a - 1) if sign == "-" else rng.randint(2, max(2, LARGEST - a))
        if sign == "/":
            a *= b
        if 1 <= a <= LARGEST and 1 <= (result := OPERATIONS[sign](a, b)) <= LARGEST:
            return a, sign, b, result
