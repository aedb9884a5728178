"""Plots of runs, as the text of SVG images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lopa_lab.paper.reports.statistics import FillsPerStep, MeasureResult
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.records.figure import INK, PALETTE, error_bars, svg_image
from lopa_lab.records.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tpf_histogram(records: Sequence[ProblemRecord], metric: str) -> str:
    """How many problems have which TPF, those that `metric` grades as solved (1) apart from the others."""
    groups: dict[str, list[float]] = {"solved": [], "not solved": [], "not graded": []}
    for record in records:
        score = None if record.scores is None else record.scores.get(metric)
        groups["not graded" if score is None else "solved" if score >= 1 else "not solved"].append(record.tpf)
    return _histogram(groups, "TPF of a problem (tokens/round)")


def tps_histogram(records: Sequence[ProblemRecord]) -> str:
    """How many problems were decoded how fast, of those that have times."""
    speeds = [each.tps for each in records if each.tps is not None]
    return _histogram({"problems": speeds}, "speed of a problem (tokens/s)")


def fills_plot(curves: Mapping[str, FillsPerStep]) -> str:
    """Tokens that each step decided, as in Figure 5: the mean with the band of the two middle quarters, a curve per
    label; below it, how many problems have the step."""

    def draw(upper: Axes, lower: Axes) -> None:
        for index, (label, curve) in enumerate(curves.items()):
            color = PALETTE[index % len(PALETTE)]
            dashes = ("-", "--", ":", "-.")[index // len(PALETTE) % 4]
            steps = range(1, len(curve.mean) + 1)
            upper.fill_between(steps, curve.q25, curve.q75, color=color, alpha=0.2, linewidth=0)
            upper.plot(steps, curve.mean, dashes, color=color, label=label, linewidth=1.6)
            lower.plot(steps, curve.count, dashes, color=color, linewidth=1.6)
        upper.set(ylabel="tokens decided", ylim=(0, None))
        x = "step (line: mean over the problems that have it, band: their middle half)"
        lower.set(ylabel="problems", xlabel=x, ylim=(0, None))
        if len(curves) > 1:
            upper.figure.legend(loc="outside upper left", ncols=2)

    return svg_image(draw, rows=(3, 1))


def latency_scatter(records: Sequence[ProblemRecord]) -> str:
    """Seconds of each problem that has times, over the tokens of its answer."""
    timed = [(each.tokens, each.seconds) for each in records if each.seconds is not None]

    def draw(axes: Axes) -> None:
        axes.plot(
            [tokens for tokens, _ in timed],
            [seconds for _, seconds in timed],
            linestyle="none",
            marker="o",
            markersize=4,
            alpha=0.75,
            color=PALETTE[0],
            markeredgewidth=0,
        )
        x = "answer (tokens, up to and including EOS)"
        axes.set(xlabel=x, ylabel="latency (s)", xlim=(0, None), ylim=(0, None))

    return svg_image(draw)


def branches_plot(points: Mapping[int, tuple[MeasureResult, MeasureResult]]) -> str:
    """TPF (left) and score (right) over the number of branches, with 95 % intervals, as in Figure 4.

    `points`: number of branches → TPF and score in percent. A horizontal line shows the score of one branch.
    """

    def draw(axes: Axes) -> None:
        right = axes.twinx()
        for index, (side, name) in enumerate(((axes, "TPF (tokens/round)"), (right, "score (%)"))):
            known = {branches: bar for branches in sorted(points) if (bar := _bar(points[branches][index]))}
            error_bars(side, [*known], [*known.values()], index, capsize=3, linewidth=1.6)
            side.set_ylabel(name, color=PALETTE[index])
            side.tick_params(axis="y", labelcolor=PALETTE[index])
        baseline = points[1][1].value if 1 in points else None
        if baseline is not None:
            right.axhline(baseline, color=PALETTE[1], linestyle="--", linewidth=1.2)
            right.annotate(
                f"score without lookahead: {baseline:.1f}",
                (0.99, baseline),
                xycoords=("axes fraction", "data"),
                xytext=(0, 4),
                textcoords="offset points",
                horizontalalignment="right",
                color=PALETTE[1],
            )
        right.grid(False)
        axes.set(ylim=(0, None), xlabel="branches of a step, the anchor among them")
        axes.set_xticks(sorted(points))

    return svg_image(draw)


def plots_markdown(folder: Path, plots: Mapping[str, str]) -> str:
    """Write plots (caption → SVG text) to files below `folder`; returns a section that shows them. Raises OSError."""
    shown = []
    for caption, image in plots.items():
        file = folder / "plots" / f"{re.sub('[^a-z0-9]+', '-', caption.casefold()).strip('-')}.svg"
        file.parent.mkdir(exist_ok=True)
        file.write_text(image, encoding="utf-8")
        shown.append(f"{caption}:\n\n![{caption}](plots/{file.name})")
    return "\n\n".join(["## Plots", *shown]) if shown else ""


def _bar(figure: MeasureResult) -> Estimate | None:
    """What error bars show: no width without an interval, and none at an end that the value lies beyond."""
    if figure.value is None:
        return None
    ends = [each for each in (figure.low, figure.value, figure.high) if each is not None]
    return Estimate(figure.value, min(ends), max(ends))


def _histogram(groups: Mapping[str, Sequence[float]], label: str) -> str:
    """Stacked, a colour per group that has values; a line at the mean of all."""
    from matplotlib.ticker import MaxNLocator

    shown = {name: values for name, values in groups.items() if values}

    def draw(axes: Axes) -> None:
        every = [value for values in shown.values() for value in values]
        if every:
            bins = min(40, max(5, int(len(every) ** 0.5)))
            axes.hist(
                list(shown.values()),
                bins=bins,
                stacked=True,
                color=PALETTE[: len(shown)],
                label=list(shown) if len(shown) > 1 else None,
                rwidth=0.92,
            )
            mean = sum(every) / len(every)
            axes.axvline(
                mean, color=INK, linestyle="--", linewidth=1.2, label=f"mean over problems: {mean:.2f}"
            )
            axes.figure.legend(loc="outside upper left", ncols=3)
        axes.set(xlabel=label, ylabel="problems")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return svg_image(draw)
