"""The record of a replayed request, and checks of single values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from lopa_lab.conformance.cases import Difference
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.vocabulary import Vocabulary

CONFIDENCE_TOLERANCE = 1e-4
"""Branch confidences may differ by this much; everything discrete is compared exactly."""


@dataclass(slots=True)
class ReplayedRun:
    """The record of a replayed request."""

    prompt_len: int
    mask_token_id: int
    eos_token_id: int
    rounds: list[tuple[Plan, StepOutcome]] = field(default_factory=list)

    @classmethod
    def of(cls, prompt: Sequence[int], vocabulary: Vocabulary) -> Self:
        """A run without a round."""
        return cls(len(prompt), vocabulary.mask_token_id, vocabulary.eos_token_id)

    @property
    def tokens(self) -> list[int]:
        """The generated ids after the last round."""
        return list(self.rounds[-1][1].canvas) if self.rounds else []


def check(what: str, number: int, expected: object, got: object) -> Iterator[Difference]:
    """A difference, if there is one."""
    if expected != got:
        yield Difference(what, number, expected, got)


def check_close(
    what: str,
    number: int,
    expected: list[float],
    got: list[float],
    tolerance: float = CONFIDENCE_TOLERANCE,
) -> Iterator[Difference]:
    """A difference, if one of the values is not within `tolerance`, or is NaN."""
    # Written so that a NaN on either side is a difference.
    if len(expected) != len(got) or not all(
        abs(a - b) <= tolerance for a, b in zip(expected, got, strict=True)
    ):
        yield Difference(what, number, expected, got)
