"""A kind of problem: which sentences tell a story, and how it is solved."""

from __future__ import annotations

from dataclasses import dataclass

ONE_DIGIT, FACTOR, NUMBER = "one digit", "factor", "number"
"""Ranges of numbers: 2 to 9, 2 to 99 but mostly small, and one to three digits."""


@dataclass(frozen=True, slots=True)
class Wordings:
    """The wordings of one sentence."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Sentences of a story and the steps of its answer.

    `[t=a*b]` in the answer stands for the calculation written out, and names its result. `<has|gets>` is one of
    these words, by chance: where nothing tells them apart a decoder has to choose, as in any text.
    """

    story: tuple[Wordings, ...]
    answer: str
    numbers: dict[str, str]
    """Letter, `a` to `g` → its range."""
    weight: float = 1.0
    """How often it is drawn, next to others."""
    distracted: bool = True
    """Whether a sentence that does not matter may stand in its story; not where everything in it counts."""
