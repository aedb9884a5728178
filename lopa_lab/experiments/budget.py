"""`lopa experiment budget`: Does an adaptive number of branches beat a fixed one?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.lookaheads import EarlyExit, varied_by
from lopa_lab.experiments.run.outcomes import column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import MARKERS, PALETTE
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point

FIXED, AUTO, EARLY_EXIT = "fixed", "auto", "early exit"
EARLY_EXIT_BRANCHES = 8
BUDGETS: dict[str, tuple[float, ...]] = {
    FIXED: (1, 2, 3, 4, 6, 8, 12, 16),
    AUTO: (4, 8, 16),
    EARLY_EXIT: (0.3, 0.5, 0.7, 0.9),
}
"""Way to decide the number of branches → its values: branches, max branches, or the bound of `EarlyExit`."""

Name: TypeAlias = tuple[str, float]


class Budget(Experiment):
    """See the module."""

    problems = 100
    smallest: ClassVar = {"BUDGETS": {FIXED: (1, 4), AUTO: (4,), EARLY_EXIT: (0.5,)}}
    method = (
        "auto: num_branches auto with max_branches as given. early exit: "
        f"{EARLY_EXIT_BRANCHES} branches, and the anchor alone in steps whose candidates all have a probability above "
        "the value. Forwards: branch evaluations."
    )

    def points(self) -> Sequence[Point]:
        return list(_points().values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        value = point["value"]
        by_kind: dict[str, dict[str, Any]] = {
            FIXED: {"num_branches": value},
            AUTO: {"num_branches": "auto", "max_branches": value},
            EARLY_EXIT: {"num_branches": EARLY_EXIT_BRANCHES},
        }
        settings = bench.settings(decoder="lopa", **by_kind[str(point["budget"])])
        if point["budget"] != EARLY_EXIT:
            return bench.decode_problems(settings)
        early_exit = varied_by(partial(EarlyExit, below=float(value or 0)), bench.setup.seed)
        return bench.decode_problems(settings, early_exit)

    def finding(self, record: ExperimentRecord) -> Finding:
        """Adaptive budgets against fixed budgets that spend as much."""
        figures = record.figures(_points())
        tpf, spent, score = figures.tpf, figures.forwards, figures.score
        fixed = [(FIXED, value) for value in BUDGETS[FIXED]]
        at_equal = {
            name: tpf[name] / _interpolated(spent[name], [spent[n] for n in fixed], [tpf[n] for n in fixed])
            for name in tpf
            if name[0] != FIXED
        }
        best = {
            kind: max((n for n in at_equal if n[0] == kind), key=lambda n: at_equal[n][0])
            for kind in (AUTO, EARLY_EXIT)
        }
        best_fixed = max(fixed, key=lambda n: tpf[n][0])
        sentences = [
            f"The fastest fixed number is {best_fixed[1]:g} branches: {tpf[best_fixed][0]:.2f} TPF for "
            f"{spent[best_fixed][0]:.2f} forwards per token."
        ]
        for kind in (AUTO, EARLY_EXIT):
            name = best[kind]
            ratio = estimate(at_equal[name])
            sentences.append(
                f"The best of {kind} ({name[1]:g}) has {tpf[name][0]:.2f} TPF for {spent[name][0]:.2f} at "
                f"{estimate(score[name] - score[best_fixed]):+.1f} points of score, and "
                f"{ratio:.3f} times the TPF of fixed numbers with as many forwards."
            )
        table = {
            "budget": [kind for kind, _ in tpf],
            "value": [f"{value:g}" for _, value in tpf],
            "TPF": column(tpf.values(), ".2f"),
            "forwards per token": column(spent.values(), ".2f"),
            "TPF ÷ fixed at equal forwards": [
                f"{estimate(at_equal[name]):.3f}" if name in at_equal else "" for name in tpf
            ],
        }
        headline = (
            "At equal forwards, adaptive numbers have "
            + " and ".join(f"{estimate(at_equal[name]):.3f} ({kind})" for kind, name in best.items())
            + " times the TPF of fixed ones."
        )
        return Finding(" ".join(sentences), table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """TPF over forwards per token."""
        figures = record.figures(_points())
        for index, (kind, values) in enumerate(BUDGETS.items()):
            spots = [(figures.forwards[kind, v][0], figures.tpf[kind, v][0]) for v in values]
            xs, ys = zip(*spots, strict=True)
            style = f"{MARKERS[index]}-" if kind == FIXED else MARKERS[index]
            axes[0].plot(xs, ys, style, color=PALETTE[index], label=kind)
            for value, spot in zip(values, spots, strict=True):
                axes[0].annotate(f"{value:g}", spot, (4, -11), textcoords="offset points", fontsize=8)
        axes[0].set(xlabel="forwards (branch evaluations) per token", ylabel="TPF")
        axes[0].figure.legend(loc="outside upper left", ncols=3)


def _points() -> dict[Name, Point]:
    return {
        (kind, value): {"budget": kind, "value": value}
        for kind, values in BUDGETS.items()
        for value in values
    }


def _interpolated(at: Array, xs: Sequence[Array], ys: Sequence[Array]) -> Array:
    """The value at `at` of the line through the points in each resample: all [1 + resamples], float64."""
    columns = np.stack(xs), np.stack(ys)
    values = []
    for index, x in enumerate(at):
        order = np.argsort(columns[0][:, index])
        values.append(np.interp(x, columns[0][order, index], columns[1][order, index]))
    return np.array(values)


EXPERIMENT = Budget()
