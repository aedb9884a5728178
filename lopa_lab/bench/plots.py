"""Plots of records, as SVG text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lopa_lab.bench.comparison import varying_keys
from lopa_lab.bench.record import BenchRecord, Row, number
from lopa_lab.records.figure import MARKERS, PALETTE, svg
from lopa_ray.protocol.report import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = dict[str, list[tuple[float, float]]]
"""Label → points."""


def plots_of(record: BenchRecord) -> Iterator[tuple[str, str]]:
    """Each plot of a record, with the name of the figure that it shows."""
    for what, draw in _PLOTS.get(record.benchmark, {}).items():
        plot = draw(record)
        if plot is not None:
            yield what, plot


def step_time_plot(record: BenchRecord) -> str:
    """Milliseconds of a step over its branches, with its floor and the plain batched forward, in the longest window."""
    window = max(number(row, "window") for row in record.rows)
    series: Series = {}
    for row in record.rows:
        if row["window"] != window:
            continue
        variant = ", ".join(
            str(row[key]) for key in varying_keys(record) if key not in ("branches", "window")
        )
        for column, label in (
            ("step ms", "step"),
            ("floor ms", "floor"),
            ("plain ms", "plain batched forward"),
        ):
            if row[column] is not None:
                name = f"{label} ({variant})" if variant else label
                series.setdefault(name, []).append((_lanes(row), number(row, column)))
    return _lines(series, f"branches of {window:.0f} positions", "ms")


def throughput_plot(record: BenchRecord) -> str:
    """Tokens per second, and the median latency, over the clients of closed loops."""
    rows = [row for row in record.rows if row["loop"] == "closed"]

    def draw(upper: Axes, lower: Axes) -> None:
        clients = [number(row, "load") for row in rows]
        for axes, column, color in ((upper, "tokens/s", 0), (lower, "latency p50 ms", 1)):
            axes.plot(
                clients, [number(row, column) for row in rows], "o-", color=PALETTE[color], linewidth=1.6
            )
            axes.set_ylabel(column)
            axes.set_ylim(bottom=0)
        lower.set_xlabel("requests in flight")

    return svg(draw, rows=(1, 1))


def phases_plot(record: BenchRecord) -> str:
    """The share of each phase in a step, a bar per row."""

    keys = varying_keys(record)

    def draw(axes: Axes) -> None:
        labels = ["\n".join(str(row[key]) for key in keys) for row in record.rows]
        bottom = [0.0] * len(labels)
        for phase, color in zip(PHASES, PALETTE, strict=True):
            shares = [
                100 * number(row, f"{phase} ms") / sum(number(row, f"{each} ms") for each in PHASES)
                for row in record.rows
            ]
            axes.bar(labels, shares, bottom=bottom, color=color, label=phase)
            bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
        axes.set_ylabel("share of a step (%)")
        axes.set_xlabel(", ".join(keys))
        axes.figure.legend(loc="outside upper left", ncols=3)

    return svg(draw)


def launches_plot(record: BenchRecord) -> str | None:
    """Kernels that a worker's step launches on an accelerator, over its lanes: branches of all requests.

    None where they are not known.
    """
    points = {
        -(-number(row, "branches") // max(1.0, number(row, "workers"))) * number(row, "requests"): row[
            "launches"
        ]
        for row in record.rows
    }
    known = sorted((lanes, float(count)) for lanes, count in points.items() if isinstance(count, int))
    return _lines({"launches": known}, "lanes of a worker", "kernels") if known else None


_PLOTS: dict[str, dict[str, Callable[[BenchRecord], str | None]]] = {
    "forward": {"step time against branches": step_time_plot},
    "serve": {"throughput against concurrency": throughput_plot},
    "step": {"share of phases": phases_plot, "launches against lanes": launches_plot},
}


def _lines(series: Series, x: str, y: str) -> str:
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        for index, (label, points) in enumerate(series.items()):
            style = f"{MARKERS[index % len(MARKERS)]}-"
            axes.plot(
                *zip(*sorted(points), strict=True), style, color=PALETTE[index % len(PALETTE)], label=label
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            axes.figure.legend(loc="outside upper left", ncols=3)

    return svg(draw)


def _lanes(row: Row) -> float:
    return number(row, "branches") * number(row, "requests")
