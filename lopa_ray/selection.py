"""Branch confidence: how a branch is scored by its still empty positions, and who wins.

A metric is a function of the ranking scores of a branch's masked positions; registering
it in `METRICS` makes it a legal value of the `branch_confidence` setting.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

BranchConfidence: TypeAlias = Callable[[Sequence[float]], float]
"""Scores (at least one) of a branch's masked positions → the branch's confidence."""

DONE = 1.0
"""Confidence of a branch without masks: above every probability and every neg-entropy."""


def mean() -> BranchConfidence:
    """C(B) = (1/n) Σ c_i over the n masked positions (LoPA, section 3)."""
    return lambda scores: math.fsum(scores) / len(scores)


def bottom(ratio: float) -> BranchConfidence:
    """Mean of the max(1, ⌊n · ratio⌋) lowest scores; ratio in [0, 1]."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio must be in [0, 1], got {ratio}")

    def confidence(scores: Sequence[float]) -> float:
        count = max(1, int(len(scores) * ratio))
        return math.fsum(sorted(scores)[:count]) / count

    return confidence


METRICS: dict[str, Callable[..., BranchConfidence]] = {"mean": mean, "bottom": bottom}


def parse_metric(text: str) -> BranchConfidence:
    """Metric from its written form, `name` or `name(number, ...)`.

    Raises ValueError for an unknown name, arguments that are no numbers, or out of range.
    """
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", text.strip())
    if match is None or match[1] not in METRICS:
        raise ValueError(
            f"{text!r} is no branch confidence; known: {', '.join(METRICS)}, written name(number)"
        )
    try:
        arguments = [float(part) for part in match[2].split(",")] if match[2] else []
    except ValueError:
        raise ValueError(f"got {text!r}; allowed: numbers as arguments, as in bottom(0.3)") from None
    try:
        return METRICS[match[1]](*arguments)
    except TypeError:
        wanted = ", ".join(inspect.signature(METRICS[match[1]]).parameters)
        raise ValueError(f"got {text!r}; allowed: {match[1]}{f'({wanted})' if wanted else ''}") from None


def mix(creation: float, confidence: float, alpha: float) -> float:
    """α · creation confidence + (1 - α) · branch confidence.

    The creation confidence is the score of the one token that a lookahead branch adds to
    the anchor, and 1.0 for the anchor itself.
    """
    return alpha * creation + (1.0 - alpha) * confidence


def winner(confidences: Sequence[float]) -> int:
    """Index of the highest confidence; ties go to the first."""
    return max(range(len(confidences)), key=confidences.__getitem__)
