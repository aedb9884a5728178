"""Trade of score for TPF: the area of a curve in one number, and the points that no other one beats."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

AUP_ALPHA = 3.0
AUP_POINTS = 5.0
"""How far below the first point's score a point may lie to count."""


def aup(points: Sequence[tuple[float, float]], best_score: float) -> float:
    """Accuracy under parallelism (d3LLM) of (TPF, score in percent) points, in order of TPF.

    The first TPF times its score, plus trapezoids of score · min(exp(-3 · (1 - score ÷ best)), 1) over TPF, through the
    points whose score is at most 5 points below the first's. Raises ValueError without points.
    """
    if not points:
        raise ValueError("there are no points")
    ordered = sorted(points)
    first_tpf, first_score = ordered[0]
    kept = [point for point in ordered if point[1] >= first_score - AUP_POINTS]
    weighted = [
        (tpf, score * min(math.exp(-AUP_ALPHA * (1 - score / best_score)), 1.0) if best_score > 0 else 0.0)
        for tpf, score in kept
    ]
    area = first_tpf * first_score
    for (left, low), (right, high) in pairwise(weighted):
        area += (right - left) * (low + high) / 2
    return area


def pareto_front(points: Mapping[Name, tuple[float, float]]) -> list[Name]:
    """The names whose (TPF, score) no other one equals or beats in both and beats in one, by rising TPF."""
    kept = [
        name
        for name, (tpf, score) in points.items()
        if not any(
            other_tpf >= tpf and other_score >= score and (other_tpf, other_score) != (tpf, score)
            for other_tpf, other_score in points.values()
        )
    ]
    return sorted(kept, key=lambda name: points[name])
