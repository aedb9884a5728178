"""`lopa experiment uncertainty`: Does any choice among branches score above one branch?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

from lopa_lab.experiments.run.drawing import draw_over_tpf
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.intervals import estimate
from lopa_lab.records.points_log import Point

BRANCHES = {"threshold": (2, 3, 4), "one per step": (2, 3)}
"""Numbers of branches by the name of the rule. One position per step takes 64 forwards per answer."""

RULES: dict[str, dict[str, Any]] = {
    "threshold": {"decoder": "lopa", "confidence_threshold": 0.9},
    "one per step": {"decoder": "vanilla"},
}
"""Settings of the rule that fills, by its name."""

WINNERS = ("certainty", "mean")


class Name(NamedTuple):
    """A point."""

    rule: str
    num_branches: int
    branch_confidence: str


class Uncertainty(Experiment):
    """See the module."""

    problems = 300
    smallest: ClassVar = {"BRANCHES": {"threshold": (2,)}, "RULES": {"threshold": RULES["threshold"]}}
    plot_rows = (1, 1)
    method = (
        "Branches are LoPA's forks of a rule: D2F's threshold of 0.9, or Dream's schedule, which fills one position "
        "per step. Positions are ranked by neg_entropy. certainty: the branch with the least uncertainty of the whole "
        "sequence wins (LookUM); mean: LoPA's choice. Points: the difference of scores to one branch of the same rule, "
        "on the same problems. With several choices one of twenty intervals is expected to lie off 0 by chance."
    )
    paper = "LookUM (arXiv 2511.05563) scores above one path with 2 to 4 paths, on models of 7 and 8 billion weights."

    def points(self) -> Sequence[Point]:
        return [name._asdict() for name in _names()]

    def measure(self, bench: Workbench, point: Point) -> Data:
        changes = {key: value for key, value in point.items() if key != "rule"}
        settings = bench.settings(ranking="neg_entropy", **RULES[str(point["rule"])], **changes)
        return bench.decode_problems(settings)

    def finding(self, record: ExperimentRecord) -> Finding:
        """Each choice against one branch of its rule."""
        names = _names()
        figures = record.figures({name: name._asdict() for name in names})
        gains = {name: figures.score[name] - figures.score[_one(name.rule)] for name in names}
        chosen = [name for name in names if name.num_branches > 1]
        best = max(chosen, key=lambda name: float(gains[name][0]))
        above = [name for name in chosen if estimate(gains[name]).low > 0]
        answer = f"{len(above)} of {len(chosen)} choices score above one branch of their rule, clearly. "
        text = (
            f"{answer}The best, {best.branch_confidence} with {best.num_branches} branches and the rule "
            f"{best.rule}, has {estimate(gains[best]):+.1f} points at {estimate(figures.forwards[best]):.2f} forwards "
            f"per token, where one branch takes {estimate(figures.forwards[_one(best.rule)]):.2f}."
        )
        table = {
            "rule": [name.rule for name in names],
            "branches": [str(name.num_branches) for name in names],
            "winner": [name.branch_confidence if name.num_branches > 1 else "–" for name in names],
            **figures.columns(),
            "points": column(gains.values(), "+.1f"),
        }
        return Finding(text, table, text.removeprefix(answer) if above else answer.strip())

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score and forwards per token over TPF, with intervals."""
        figures = record.figures({name: name._asdict() for name in _names()})
        lines = {
            f"{rule}, {winner}": [
                name for name in _names() if name.rule == rule and name.branch_confidence == winner
            ]
            for rule, winner in product(RULES, WINNERS)
        }
        rows = {"solved, %": figures.score, "forwards per token": figures.forwards}
        draw_over_tpf(axes, lines, figures.tpf, rows)


def _one(rule: str) -> Name:
    return Name(rule, 1, WINNERS[0])


def _names() -> list[Name]:
    several = {rule: product(BRANCHES[rule], WINNERS) for rule in RULES}
    return [name for rule in RULES for name in (_one(rule), *(Name(rule, *rest) for rest in several[rule]))]


EXPERIMENT = Uncertainty()
