"""Figures 4 and 5 of runs, as the text of SVG images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lopa_lab.paper.cell_run import CellRun
from lopa_lab.records.figure import MARKERS, PALETTE, svg_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def fills_plot(runs: Mapping[str, CellRun]) -> str:
    """Tokens that each step decided (Figure 5), a curve per label: the mean over the problems that have the step, with
    the band of their two middle quarters; below it, how many problems these are."""

    def draw(upper: Axes, lower: Axes) -> None:
        for index, (label, run) in enumerate(runs.items()):
            color = PALETTE[index % len(PALETTE)]
            longest = max((each.steps for each in run.records), default=0)
            decided = np.full((len(run.records), longest), np.nan)
            for row, record in zip(decided, run.records, strict=True):
                row[: len(record.fills)] = record.fills
            steps = np.arange(1, longest + 1)
            if longest:
                upper.fill_between(
                    steps, *np.nanpercentile(decided, [25, 75], axis=0), color=color, alpha=0.2, linewidth=0
                )
                upper.plot(steps, np.nanmean(decided, axis=0), color=color, label=label, linewidth=1.6)
            lower.plot(steps, (~np.isnan(decided)).sum(axis=0), color=color, linewidth=1.6)
        upper.set(ylabel="tokens decided", ylim=(0, None))
        lower.set(ylabel="problems", xlabel="step (mean, and middle half of the problems)", ylim=(0, None))
        upper.figure.legend(loc="outside upper left", ncols=2)

    return svg_image(draw, rows=(3, 1))


def branches_plot(runs: Sequence[CellRun]) -> str:
    """TPF (left) and score in percent (right) over the number of branches (Figure 4); a line at the score of one."""
    points: dict[int, dict[str, Any]] = {run.num_branches: run.figures for run in runs}
    branches = sorted(points)

    def draw(axes: Axes) -> None:
        right = axes.twinx()
        for index, (side, name, label) in enumerate(
            ((axes, "tpf", "TPF (tokens/round)"), (right, "score", "score (%)"))
        ):
            values = [points[number][name] for number in branches]
            side.plot(branches, values, f"{MARKERS[index]}-", color=PALETTE[index])
            side.set_ylabel(label, color=PALETTE[index])
        if 1 in points:
            right.axhline(points[1]["score"], color=PALETTE[1], linestyle="--", linewidth=1.2)
        right.grid(False)
        axes.set(ylim=(0, None), xlabel="branches of a step, the anchor among them", xticks=branches)

    return svg_image(draw)
