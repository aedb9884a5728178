"""The samples of a step of the demo model's training: problems in all wordings and drills, or decisions.

Seed and step alone decide which.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from drills import make_drill
from lopa_lab.word_problems import Problem, training_problems
from lopa_lab.word_problems.decisions import Decision, decision_stream
from lopa_lab.word_problems.told_stories import make_told_problem

DRILL_SHARE = 0.14  # of the problems are drills
TOLD_SHARE = 0.5  # of the problems are in the grammar's wordings
STEPS_TOGETHER = 8  # whose samples are drawn together and split by length, so a batch has little padding
T = TypeVar("T")


def make_mixed(rng: random.Random) -> Problem:
    """A drill, or a problem in the grammar's wordings."""
    drills = DRILL_SHARE / (DRILL_SHARE + TOLD_SHARE)
    return make_drill(rng) if rng.random() < drills else make_told_problem(rng)


def mixed_problems(seed: int) -> Iterator[Problem]:
    """Training problems of all sorts without end; none are held out."""
    return training_problems(seed, (DRILL_SHARE + TOLD_SHARE, make_mixed))


def problems_of_step(seed: int, step: int, size: int) -> list[Problem]:
    """Training problems whose texts have about the same length: a part of the problems of `STEPS_TOGETHER` steps."""
    together, index = divmod(step, STEPS_TOGETHER)
    drawn = problems_together(seed * 1_000_003 + together, STEPS_TOGETHER * size)
    return part(drawn, seed * 1_000_003 + together, index, size)


def decisions_of_step(seed: int, step: int, size: int) -> list[Decision]:
    """Training decisions of about the same length, in the same way."""
    together, index = divmod(step, STEPS_TOGETHER)
    drawn = decisions_together(seed * 1_000_003 + together, STEPS_TOGETHER * size)
    return part(drawn, seed * 1_000_003 + together, index, size)


def part(drawn: Sequence[T], seed: int, index: int, size: int) -> list[T]:
    """One of the parts of what is sorted by length, which come in another order with every seed."""
    order = random.Random(seed).sample(range(STEPS_TOGETHER), STEPS_TOGETHER)
    return list(drawn[size * order[index] :][:size])


@functools.lru_cache(maxsize=1)
def problems_together(seed: int, count: int) -> tuple[Problem, ...]:
    """Problems, the shortest first."""
    drawn = itertools.islice(mixed_problems(seed), count)
    return tuple(sorted(drawn, key=lambda problem: len(problem.question) + len(problem.answer)))


@functools.lru_cache(maxsize=1)
def decisions_together(seed: int, count: int) -> tuple[Decision, ...]:
    """Decisions, the shortest first."""
    drawn = itertools.islice(decision_stream(seed, held_out=False), count)
    return tuple(sorted(drawn, key=lambda decision: len(decision.input) + len(decision.question.message)))
