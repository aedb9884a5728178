"""`lopa bench report`: a page of all records of a folder, with plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lopa_lab.bench.measurements import BenchRecord, common_values, number, record_table, varying_keys
from lopa_lab.records import markdown
from lopa_lab.records.figure import MARKERS, PALETTE, require_matplotlib, svg_image
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.step_report import StepTiming

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = dict[str, list[tuple[float, float]]]
"""Label → points."""

RECORDS, PLOTS, PAGE = "records", "plots", "README.md"

INTRODUCTION = """# Benchmarks

`lopa bench report` writes this page from `records/`, where more columns, rows and commits are. Run the command of a
section with `--against records/NAME.json` to compare another machine or version. `lopa bench all` makes the main
records of a kind of device. [NOTES.md](NOTES.md) has findings.
"""

QUESTIONS = {
    "decode": "Tokens per forward and per second, latency and problems solved of decoders",
    "rollouts": "Groups of answers with their trajectories, by one branch and by exact drafts",
    "serve": "A server under load",
    "forward": "A worker's step, beside the floor of the device and a plain batched forward",
    "step": "A step by phase, on several workers",
    "commit": "The commit of a winner's K/V",
    "recovery": "The pause of requests when a worker or a group is killed",
    "rl": "Reinforcement learning on a group: problems solved as it goes on",
}
"""Benchmark → what it measures, in the order of the page's index."""

LEFT_OUT = {
    "decode": {"TPS max", "TPS top 10", "latency max ms"},
    "step": {"steps", "plan ms", "scatter ms", "gather ms", "select ms", "launches", "copies in", "waits"},
    "commit": {"commits"},
    "forward": {"rows", "floor ms", "plain ms"},
    "serve": {"sent", "failed", "latency p95 ms"},
}
"""Benchmark → columns of its records that the page does not have."""


def write_report(folder: Path) -> Path:
    """Write the page and the plots of the records in `folder`; returns the page's path.

    Raises SettingsError if there are no records, one cannot be read, or matplotlib is missing.
    """
    require_matplotlib()
    paths = sorted((folder / RECORDS).glob("*.json"))
    if not paths:
        raise SettingsError(f"{folder / RECORDS} has no records; make some: lopa bench all --output {folder}")
    records = {path.stem: BenchRecord.read(path) for path in paths}
    (packages, _), *_ = Counter(map(_packages, records.values())).most_common(1)
    index = [
        [
            question,
            ", ".join(f"[{name}](#{name})" for name, record in records.items() if record.name == benchmark),
        ]
        for benchmark, question in QUESTIONS.items()
    ]
    index = [row for row in index if row[1]]
    sections = [markdown.table(["what is measured", "records"], index) + "\n"]
    sections.append(f"Packages, unless a section says otherwise: {packages}.\n")
    methods: dict[str, str] = {}
    for name, record in records.items():
        first = methods.setdefault(record.method, name)
        method = record.method if first == name else f"Measured as [{first}](#{first})."
        environment = "" if _packages(record) == packages else f"; {_packages(record)}"
        origin = f"{record.machine.hardware}{environment}; {record.started:%Y-%m-%d}."
        sections.append("\n".join([*_section(name, record, origin, folder), method, ""]))
    page = folder / PAGE
    page.write_text("\n".join([INTRODUCTION, *sections]), encoding="utf-8")
    return page


def _packages(record: BenchRecord) -> str:
    return f"lopa-ray {record.version}, {record.machine.package_list}, Python {record.machine.python}"


def _section(name: str, record: BenchRecord, origin: str, folder: Path) -> list[str]:
    """The lines of a record's part of the page, whose plots it writes, up to its method."""
    header, *rows = record_table(record)
    if record.name == "commit":  # With one worker nothing is sent.
        several = [cells for row, cells in zip(record.rows, rows, strict=True) if row["workers"] != 1]
        rows = several or rows
    shown = [at for at, column in enumerate(header) if column not in LEFT_OUT.get(record.name, ())]
    needs = ["*Needs: download.*", ""] if "--config models/" in record.command_line else []
    lines = [f"## {name}", "", *needs, markdown.code_block(record.command_line), "", origin, ""]
    for what, draw in PLOTS_OF.get(record.name, {}).items():
        file = folder / PLOTS / f"{name}-{what.replace(' ', '-')}.svg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(draw(record), encoding="utf-8")
        lines += [f"![{what}]({PLOTS}/{file.name})", ""]
    common = common_values(record)
    lines += [markdown.table([header[at] for at in shown], [[row[at] for at in shown] for row in rows]), ""]
    return [*lines, *([f"All rows: {common}.", ""] if common else [])]


def step_time_plot(record: BenchRecord) -> str:
    """Milliseconds of a step over its branches, with its floor and the plain batched forward, in the longest window."""
    window = max(number(row, "window") for row in record.rows)
    series: Series = {}
    varying = [key for key in varying_keys(record) if key not in ("branches", "window")]
    labels = {"step ms": "step", "floor ms": "floor", "plain ms": "plain batched forward"}
    for row in record.rows:
        variant = ", ".join(str(row[key]) for key in varying)
        for column, label in labels.items():
            if row["window"] == window and row[column] is not None:
                name = f"{label} ({variant})" if variant else label
                lanes = number(row, "branches") * number(row, "requests")
                series.setdefault(name, []).append((lanes, number(row, column)))
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
            axes.set(ylabel=column, ylim=(0, None))
        lower.set_xlabel("requests in flight")

    return svg_image(draw, rows=(1, 1))


def learning_plot(record: BenchRecord) -> str:
    """The share of problems that are solved, and of rollouts that are right, over the minutes."""
    series: Series = {}
    for row in record.rows:
        for column, label in {
            "sampled %": "evaluation, drawn at temperature 1",
            "greedy %": "evaluation, greedy",
            "rollouts right %": "rollouts",
        }.items():
            if row[column] is not None:
                series.setdefault(label, []).append((number(row, "minutes"), number(row, column)))
    return _lines(series, "minutes", "solved (%)")


def phases_plot(record: BenchRecord) -> str:
    """The share of each phase in a step, a bar per row."""
    keys = varying_keys(record)
    phases = [field.name for field in fields(StepTiming)]

    def draw(axes: Axes) -> None:
        labels = ["\n".join(str(row[key]) for key in keys) for row in record.rows]
        bottom = [0.0] * len(labels)
        for phase, color in zip(phases, PALETTE, strict=True):
            shares = [
                100 * number(row, f"{phase} ms") / sum(number(row, f"{name} ms") for name in phases)
                for row in record.rows
            ]
            axes.bar(labels, shares, bottom=bottom, color=color, label=phase)
            bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
        axes.set(ylabel="share of a step (%)", xlabel=", ".join(keys))
        axes.figure.legend(loc="outside upper left", ncols=3)

    return svg_image(draw)


def _lines(series: Series, x: str, y: str) -> str:
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        for index, (label, points) in enumerate(series.items()):
            style = f"{MARKERS[index % len(MARKERS)]}-"
            axes.plot(
                *zip(*sorted(points), strict=True), style, color=PALETTE[index % len(PALETTE)], label=label
            )
        axes.set(xlabel=x, ylabel=y, xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            axes.figure.legend(loc="outside upper left", ncols=3)

    return svg_image(draw)


PLOTS_OF: dict[str, dict[str, Callable[[BenchRecord], str]]] = {
    "forward": {"step time against branches": step_time_plot},
    "rl": {"solved against minutes": learning_plot},
    "serve": {"throughput against concurrency": throughput_plot},
    "step": {"share of phases": phases_plot},
}
