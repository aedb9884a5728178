"""`lopa experiment ablation`: What does each part of LoPA contribute?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.lookaheads import (
    BestFork,
    MakeLookahead,
    RandomBranch,
    RandomPositions,
    WithoutAnchor,
    varied_by,
)
from lopa_lab.experiments.run.outcomes import column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import PALETTE
from lopa_lab.records.intervals import Array, Estimate, estimate, percent_of
from lopa_lab.records.points_log import Point

LOPA, NO_LOOKAHEAD = "LoPA", "no lookahead"
RANDOM_POSITIONS, RANDOM_WINNER, ONE_BRANCH = "random positions", "random winner", "one branch: the best fork"
NO_ANCHOR = "without the anchor"
SHORT_BLOCK = 8
FULL, CAUSAL = f"blocks of {SHORT_BLOCK}, full window", f"blocks of {SHORT_BLOCK}, block-causal window"
FULL_ALONE, CAUSAL_ALONE = f"{FULL}, no lookahead", f"{CAUSAL}, no lookahead"

VARIANTS: dict[str, dict[str, Any]] = {
    LOPA: {},
    NO_LOOKAHEAD: {"num_branches": 1},
    RANDOM_POSITIONS: {},
    RANDOM_WINNER: {},
    ONE_BRANCH: {},
    NO_ANCHOR: {},
    FULL: {"block_size": SHORT_BLOCK, "window_attention": "full"},
    CAUSAL: {"block_size": SHORT_BLOCK, "window_attention": "block_causal"},
    FULL_ALONE: {"block_size": SHORT_BLOCK, "window_attention": "full", "num_branches": 1},
    CAUSAL_ALONE: {"block_size": SHORT_BLOCK, "window_attention": "block_causal", "num_branches": 1},
}
"""Variant → its changes of LoPA's decode settings."""
LOOKAHEADS: dict[str, MakeLookahead] = {
    RANDOM_POSITIONS: RandomPositions,
    RANDOM_WINNER: RandomBranch,
    ONE_BRANCH: BestFork,
    NO_ANCHOR: WithoutAnchor,
}
"""Lookaheads of the variants that have one of their own."""


POINTS: dict[str, Point] = {name: {"variant": name} for name in VARIANTS}


class Ablation(Experiment):
    """See the module."""

    problems = 150
    method = (
        "no lookahead: the anchor alone (D2F). random positions: of the forks. random winner: drawn from LoPA's "
        "branches; it alone is evaluated. one branch: the fork at the best-ranked position, without comparison. "
        "without the anchor: forks alone compete. full or block-causal window: rows see the whole window, or their own "
        "and earlier blocks."
    )

    def points(self) -> Sequence[Point]:
        return list(POINTS.values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        name = str(point["variant"])
        settings = bench.settings(decoder="lopa", **VARIANTS[name])
        return bench.decode_problems(settings, varied_by(LOOKAHEADS.get(name), bench.setup.seed))

    def finding(self, record: ExperimentRecord) -> Finding:
        """Every variant against LoPA."""
        figures = record.figures(POINTS)
        tpf, score, forwards = figures.tpf, figures.score, figures.forwards

        def ratio(name: str, other: str = LOPA) -> Estimate:
            return estimate(tpf[name] / tpf[other])

        def gap(name: str, other: str = LOPA) -> Estimate:
            return estimate(score[name] - score[other])

        def against(name: str, of_other: str = "", other: str = LOPA) -> str:
            return f"{ratio(name, other):.2f} times the TPF{of_other} and {gap(name, other):+.1f} points of score"

        text = (
            f"Against LoPA, one branch, which takes the best fork without comparison, has {against(ONE_BRANCH)}; "
            f"forks at random positions have {against(RANDOM_POSITIONS)}. {_gain(tpf)}With blocks of {SHORT_BLOCK}, a "
            f"block-causal window has {against(CAUSAL, ' of a full one', FULL)}."
        )
        table = {
            "variant": list(VARIANTS),
            "TPF": column(tpf.values(), ".2f"),
            "÷ LoPA's TPF": column((tpf[name] / tpf[LOPA] for name in VARIANTS), ".2f"),
            "score %": column(score.values(), ".1f"),
            "forwards per token": column(forwards.values(), ".2f"),
        }
        headline = (
            f"Without comparing branches, the best fork alone has {ratio(ONE_BRANCH):.2f} times LoPA's TPF, for "
            f"{estimate(forwards[ONE_BRANCH] / forwards[LOPA]):.2f} times its forwards."
        )
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """TPF and score of each variant, with intervals."""
        names = list(VARIANTS)[::-1]
        figures = record.figures(POINTS)
        for index, name in enumerate(names):
            tpf, score = estimate(figures.tpf[name]), estimate(figures.score[name])
            axes[0].barh(index, tpf.value, color=PALETTE[0 if name == LOPA else 5], height=0.6)
            axes[0].hlines(index, tpf.low, tpf.high, color=PALETTE[1], linewidth=2)
            axes[0].annotate(
                f"{score.value:.0f} %", (tpf.high, index), (4, -4), textcoords="offset points", fontsize=9
            )
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set(xlabel="TPF; beside each bar: solved", xlim=(0, None))
        axes[0].margins(x=0.15)


def _gain(tpf: Mapping[str, Array]) -> str:
    """The share of LoPA's gain without a comparison of branches; nothing where there is no gain."""
    whole = tpf[LOPA] - tpf[NO_LOOKAHEAD]
    if not whole[0] > 0:
        return ""
    one, drawn = (
        estimate(percent_of(tpf[name] - tpf[NO_LOOKAHEAD], whole)) for name in (ONE_BRANCH, RANDOM_WINNER)
    )
    return (
        f"The token that a fork adds, without any comparison, has {one:.0f} % of what LoPA gains over no lookahead, "
        f"and a random winner {drawn:.0f} %. "
    )


EXPERIMENT = Ablation()
