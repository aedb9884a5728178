"""CellComparison: the cells of a table or figure of the paper beside what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lopa_lab.paper.reports.measures import DEFINITIONS, INTERVAL, SCORE, Measure, definitions_markdown
from lopa_lab.paper.reports.plots import branches_plot, fills_plot, plots_markdown
from lopa_lab.paper.reports.run_report import SCHEMA_VERSION, RunReport, write_json
from lopa_lab.paper.reports.statistics import MeasureResult, format_number
from lopa_lab.paper.tables.run_cells import CellResult
from lopa_lab.records import markdown

SOURCE = "LoPA, arXiv 2512.16229"

MOST_NAMED = 6
"""Cells that are named for a reason; more of them are counted."""


@dataclass(frozen=True, slots=True)
class CellComparison:
    """The results of all cells of a table; the folders of their runs are in `folder`."""

    title: str
    results: Sequence[CellResult]
    folder: Path

    def write(self) -> None:
        """Write comparison.json, and comparison.md with its plots. Needs matplotlib. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "comparison.json", self.as_dict())
        (self.folder / "comparison.md").write_text(self._markdown(), encoding="utf-8")

    @property
    def measures(self) -> list[Measure]:
        """The measures that are shown: the score, TPF, and each one with a published number in some cell."""
        published = [
            name for each in self.results for name, value in each.cell.published.items() if value is not None
        ]
        return [each for each in DEFINITIONS if each.name in (SCORE, "tpf") or each.published_as in published]

    @property
    def made_with(self) -> dict[str, str]:
        """Model, machine and versions of the runs, as `RunReport.made_with`; where runs differ, each value."""
        found = _grouped(pair for report in self._reports for pair in report.made_with.items())
        return {name: "; ".join(dict.fromkeys(texts)) for name, texts in found.items()}

    @property
    def notes(self) -> list[str]:
        """What limits the figures, each note with the cells that it is about."""
        about = _grouped((note, result.cell.name) for result in self.results for note in _notes(result))
        return [
            f"{'All runs' if len(names) == len(self._reports) else '; '.join(names)}: {note}"
            for note, names in about.items()
        ]

    @property
    def not_run(self) -> list[str]:
        """Why cells were not run, each reason with its cells, or with their number if they are many."""
        found = _grouped((each.reason, each.cell.name) for each in self.results if each.report is None)
        return [
            f"Not run: {reason} ({'; '.join(names) if len(names) <= MOST_NAMED else f'{len(names)} cells'})"
            for reason, names in found.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with all measures of every cell."""
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "published_source": SOURCE,
            "interval": INTERVAL,
            "definitions": {each.name: each.definition for each in DEFINITIONS},
            "units": {each.name: each.unit for each in DEFINITIONS},
            "rows": [
                {
                    "labels": {"row": result.cell.row, "task": result.cell.column},
                    "published": dict(result.cell.published),
                    "measured": {name: asdict(each) for name, each in _measured(result.report).items()},
                    "not_run": result.reason or None,
                    "notes": _notes(result),
                    "folder": report and str(report.folder.relative_to(self.folder)),
                    "run": report and report.run.model_dump(mode="json"),
                    "fills_per_step": report and asdict(report.fills),
                }
                for result in self.results
                for report in [result.report]
            ],
        }

    def as_table(self) -> Table:
        """Of the cells that were run, for the console: values without intervals, to fit into 80 columns."""
        columns = ["row", "task"]
        for measure in self.measures:
            columns += [measure.title, "paper"] if measure.published_as else [measure.title]
        shown = Table(*columns, title=Text(self.title), title_justify="left", box=SIMPLE_HEAD)
        for result in self.results:
            if result.report is not None:
                shown.add_row(*map(Text, self._cells(result, intervals=False)))
        return shown

    @property
    def _reports(self) -> list[RunReport]:
        return [each.report for each in self.results if each.report is not None]

    def _cells(self, result: CellResult, *, intervals: bool) -> list[str]:
        """Row, task, and for each measure the value and the published number."""
        cells = [result.cell.row, result.cell.column]
        measured = _measured(result.report)
        for measure in self.measures:
            text = ""
            if measure.name in measured:
                figure = measured[measure.name]
                text = format_number(figure.value, measure.digits)
                ends = figure.interval(measure.digits)
                text += f" [{ends}]" if intervals and ends else ""
            cells.append(text)
            if measure.published_as:
                published = result.cell.published.get(measure.published_as)
                cells.append("" if published is None else f"{published:,}")
        return cells

    def _markdown(self) -> str:
        """The text of comparison.md, whose plots are written."""
        header = ["row", "task"]
        for measure in self.measures:
            header.append(f"{measure.title} ({measure.unit})")
            header += ["published"] if measure.published_as else []
        rows = [
            [*self._cells(each, intervals=True), self._run(each)]
            for each in self.results
            if each.report is not None or any(value is not None for value in each.cell.published.values())
        ]
        parts = [
            f"# {markdown.escape(self.title)}",
            markdown.table([*header, "run"], rows),
            f"Published numbers: {SOURCE}.",
            "\n".join(f"- {markdown.escape(note)}" for note in [*self.notes, *self.not_run]),
            plots_markdown(self.folder, self._plots()),
            "## Definitions",
            definitions_markdown(self.measures),
            "## Made with" if self.made_with else "",
            markdown.table(["", ""], [*self.made_with.items()]) if self.made_with else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _run(self, result: CellResult) -> str:
        """What was run, with a link to its report, or why nothing was."""
        report = result.report
        if report is None:
            return f"not run: {result.reason}"
        link = (report.folder / "report.md").relative_to(self.folder).as_posix()
        return f"[{report.run.model}, {report.run.task}, {report.decoded}]({link})"

    def _plots(self) -> dict[str, str]:
        """Caption → SVG text. Figure 4 has a plot per model and task with runs, Figure 5 one per task."""
        runs: dict[str, dict[str, RunReport]] = {}
        for cell, report in ((each.cell, each.report) for each in self.results):
            if report is not None and cell.table in ("fig4", "fig5"):
                model, _, name = cell.row.partition(" ")
                runs.setdefault(f"{model}, {cell.column}", {})[name] = report
        if self.results[0].cell.table == "fig4":
            return {
                caption: branches_plot(dict(map(_point, reports.values())))
                for caption, reports in runs.items()
            }
        return {
            caption: fills_plot({name: report.fills for name, report in reports.items()})
            for caption, reports in runs.items()
        }


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """First part of a pair → the second parts, both in their order."""
    groups: dict[str, list[str]] = {}
    for first, second in pairs:
        groups.setdefault(first, []).append(second)
    return groups


def _notes(result: CellResult) -> list[str]:
    """What limits the figures of a run; none without one."""
    if result.report is None:
        return []
    return [note for note in (result.cell.note, result.note, *result.report.notes) if note]


def _measured(report: RunReport | None) -> dict[str, MeasureResult]:
    """By name of a measure, the score that is compared with the paper's among them; empty without a run."""
    if report is None:
        return {}
    return {SCORE: report.summary.scores[report.run.metric], **report.summary.figures}


def _point(report: RunReport) -> tuple[int, tuple[MeasureResult, MeasureResult]]:
    """A run's number of branches, its TPF and its score."""
    decode = report.run.settings["decode"]
    branches = decode["num_branches"] if decode["decoder"] == "lopa" else 1
    measured = _measured(report)
    return branches, (measured["tpf"], measured[SCORE])
