"""`lopa experiment branches`: What do more branches per step give, and what do they cost?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Name
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import MARKERS, PALETTE
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point

BRANCHES = (1, 2, 4, 8, 16)
THRESHOLDS = (0.6, 0.7, 0.8, 0.9, 0.95)

Setting: TypeAlias = tuple[float, int]
"""Confidence threshold and branches."""

AUP_ALPHA = 3.0
AUP_POINTS = 5.0
"""Points of score by which a counted point may lie below the first."""


class Branches(Experiment):
    """See the module."""

    problems = 100
    smallest: ClassVar = {"BRANCHES": (1, 4), "THRESHOLDS": (0.7, 0.9)}
    method = (
        "LoPA with each confidence_threshold and num_branches (the anchor included; 1 is D2F): TPF and score %. TPF: "
        "tokens up to the first EOS ÷ steps. AUP: accuracy under parallelism (d3LLM) over the thresholds."
    )
    paper = (
        "With D2F-Dream on GSM8K, LoPA's TPF is 10.1 at a score of 73.8, and D2F's 3.1 at 78.5 (Table 1), with 14 "
        "branches (Table 5)."
    )

    def points(self) -> Sequence[Point]:
        return list(_points().values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        return bench.decode_problems(bench.settings(decoder="lopa", **point))

    def finding(self, record: ExperimentRecord) -> Finding:
        """Gain and cost of the most branches, the front, and AUP."""
        figures = record.figures(_points())
        tpf, score = figures.tpf, figures.score
        middle = _usual_threshold(record)
        one, most = (middle, min(BRANCHES)), (middle, max(BRANCHES))
        best = max(BRANCHES, key=lambda b: tpf[middle, b][0])
        areas = {b: _aup_figure(tpf, score, b) for b in BRANCHES}
        best_area = max(BRANCHES, key=lambda b: areas[b][0])
        gain = estimate(tpf[middle, best] / tpf[one])
        cost = estimate(score[middle, best] - score[one])
        last = estimate(tpf[most] / tpf[middle, BRANCHES[-2]])
        worse = estimate(score[most] - score[middle, BRANCHES[-2]])
        text = (
            f"At threshold {middle:g}, one branch has {estimate(tpf[one]):.2f} TPF at {estimate(score[one]):.1f} % "
            f"solved. TPF is highest with {best} branches: {gain:.2f} times that, with a score that changes by "
            f"{cost:+.1f} points. From {BRANCHES[-2]} to {BRANCHES[-1]} branches TPF is multiplied by {last:.3f} "
            f"and the score changes by {worse:+.1f} points. AUP is highest with {best_area}: "
            f"{estimate(areas[best_area]):.0f}, a difference of {estimate(areas[best_area] - areas[1]):.0f} to one."
        )
        table = {
            "threshold": [f"{threshold:g}" for threshold in THRESHOLDS],
            **{
                ("1 branch" if b == 1 else f"{b} branches"): [
                    f"{estimate(tpf[t, b]):.2f}; {estimate(score[t, b]):.0f}" for t in THRESHOLDS
                ]
                for b in BRANCHES
            },
        }
        headline = (
            f"{best} branches have {gain:.2f} times the TPF of one, at {cost:+.1f} points of score; {BRANCHES[-1]} "
            f"have {last:.3f} times that of {BRANCHES[-2]}, at {worse:+.1f} points."
        )
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score over TPF, a line per number of branches through the thresholds; the front is ringed."""
        figures = record.figures(_points())
        at = {name: (float(tpf[0]), float(figures.score[name][0])) for name, tpf in figures.tpf.items()}
        for index, b in enumerate(BRANCHES):
            xs, ys = zip(*(at[t, b] for t in THRESHOLDS), strict=True)
            axes[0].plot(xs, ys, f"{MARKERS[index]}-", color=PALETTE[index], label=str(b), markersize=5)
        xs, ys = zip(*(at[name] for name in pareto_front(at)), strict=True)
        axes[0].scatter(xs, ys, s=120, facecolors="none", edgecolors=PALETTE[5], label="front")
        axes[0].set(xlabel="TPF", ylabel="score (%)")
        axes[0].figure.legend(loc="outside upper left", ncols=6, title="branches per step")


def _points() -> dict[Setting, Point]:
    return {(t, b): {"confidence_threshold": t, "num_branches": b} for t in THRESHOLDS for b in BRANCHES}


def _usual_threshold(record: ExperimentRecord) -> float:
    """The one of the points that is closest to the configuration's."""
    usual = record.setup.settings.get("decode", {}).get("confidence_threshold", 0.9)
    return min(THRESHOLDS, key=lambda threshold: abs(threshold - usual))


def _aup_figure(tpf: Mapping[Setting, Array], score: Mapping[Setting, Array], branches: int) -> Array:
    """AUP over the thresholds: [1 + resamples], float64."""
    best = np.max(np.stack(list(score.values())), axis=0)
    columns = [(tpf[t, branches], score[t, branches]) for t in THRESHOLDS]
    return np.array(
        [aup([(float(x[i]), float(y[i])) for x, y in columns], float(best[i])) for i in range(len(best))]
    )


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
    """The names whose (TPF, score) no other equals or beats in both and beats in one, by rising TPF."""

    def beaten(point: tuple[float, float]) -> bool:
        return any(x >= point[0] and y >= point[1] and (x, y) != point for x, y in points.values())

    return sorted((name for name in points if not beaten(points[name])), key=lambda name: points[name])


EXPERIMENT = Branches()
