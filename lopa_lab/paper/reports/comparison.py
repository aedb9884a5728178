"""Comparison: several runs beside each other and beside the paper, as its tables and figures have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lopa_lab.paper.reports.measures import INTERVAL, SCORE, Measure, definitions
from lopa_lab.paper.reports.number_format import format_interval, format_number, format_published
from lopa_lab.paper.reports.pages import render
from lopa_lab.paper.reports.report import write_json
from lopa_lab.paper.reports.report_content import SCHEMA_VERSION, Report, known_numbers
from lopa_lab.paper.reports.report_facts import run_facts
from lopa_lab.paper.reports.statistics import MeasuredValue
from lopa_lab.records import markdown

OF_ONE_RUN = ("task", "score", "configuration", "prompts", "problems", "started")
"""Facts that differ from run to run, which its own report has."""

Plots = Sequence[tuple[str, str]]
"""Captions, and SVG text of `lopa_lab.paper.reports.plots`."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One run, or one that was not made. Either `measured` has estimates or `not_run` has a reason."""

    labels: Mapping[str, str]
    """Column → text, such as model and task. All rows of a table have the same columns."""
    published: Mapping[str, float | None]
    """The paper's numbers by their names in `lopa_lab.paper.reports.measures.PUBLISHED`; None where it prints none."""
    measured: Mapping[str, MeasuredValue] = field(default_factory=dict)
    """By name of a measure, `score` among them."""
    not_run: str = ""
    """Why there is no run, such as "needs 8 GPUs"."""
    made_on: str = ""
    """Model, benchmark and number of problems of the run."""
    notes: tuple[str, ...] = ()
    """What limits the run's figures (`Report.notes`)."""
    report: Report | None = None
    """The run's report."""
    folder: str = ""
    """The folder of the run's records and of its own report, below that of the comparison."""

    def __post_init__(self) -> None:
        if bool(self.measured) == bool(self.not_run):
            raise ValueError(
                f"{dict(self.labels)}: a row has either estimates or a reason why it was not run"
            )
        known_numbers(self.published)

    @classmethod
    def of_run(
        cls,
        labels: Mapping[str, str],
        report: Report,
        published: Mapping[str, float | None],
        folder: str = "",
    ) -> ComparisonRow:
        """The row of a run that was made. Raises SettingsError for unknown names in `published`."""
        score = report.summary.scores[report.run.metric]
        return cls(
            labels,
            published,
            {SCORE: score, **report.summary.figures},
            "",
            f"{report.run.model}, {report.run.task}, {report.decoded}",
            report.notes,
            report,
            folder,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of runs."""

    title: str
    rows: Sequence[ComparisonRow]
    published_source: str
    """Where the published numbers are from."""

    def __post_init__(self) -> None:
        if len({tuple(row.labels) for row in self.rows}) > 1:
            raise ValueError("the rows of a comparison have different columns of labels")

    @property
    def measures(self) -> list[Measure]:
        """The measures that the table shows: the score, TPF, and each one with a published number in some row."""
        wanted = {name for row in self.rows for name in known_numbers(row.published)}
        return [each for each in definitions() if each.name in (SCORE, "tpf") or each.published_as in wanted]

    @property
    def header(self) -> list[str]:
        """The titles of the columns of `cells`."""
        columns = [*(self.rows[0].labels if self.rows else ()), "run"]
        for measure in self.measures:
            columns.append(f"{measure.title} ({measure.unit})")
            if measure.published_as:
                columns.append("published")
        return columns

    def cells(self, row: ComparisonRow) -> list[str]:
        """Labels, how much was run, for each measure the value with its interval and the published number."""
        cells = [*row.labels.values(), f"not run: {row.not_run}" if row.not_run else row.made_on]
        for measure in self.measures:
            cells.append(_measured(row.measured.get(measure.name), measure))
            if measure.published_as:
                cells.append(format_published(row.published.get(measure.published_as)))
        return cells

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What the runs were made with, as `run_facts` has it: versions, machine. Runs that differ are all named."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            for name, text in run_facts(row.report) if row.report is not None else ():
                if name not in OF_ONE_RUN and text not in found.setdefault(name, []):
                    found[name].append(text)
        return [(name, "; ".join(texts)) for name, texts in found.items()]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Which rows a note is about, and the note."""
        run = [row for row in self.rows if not row.not_run]
        about: dict[str, list[str]] = {}
        for row in run:
            for note in row.notes:
                about.setdefault(note, []).append(", ".join(row.labels.values()))
        return [
            ("All runs" if len(names) == len(run) else "; ".join(names), note)
            for note, names in about.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with all measures of every row."""
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "published_source": self.published_source or None,
            "interval": INTERVAL,
            "definitions": {each.name: each.definition for each in definitions()},
            "units": {each.name: each.unit for each in definitions()},
            "rows": [
                {
                    "labels": dict(row.labels),
                    "published": dict(row.published),
                    "measured": {name: asdict(each) for name, each in row.measured.items()},
                    "not_run": row.not_run or None,
                    "notes": list(row.notes),
                    "folder": row.folder or None,
                    "run": None if row.report is None else row.report.run.model_dump(mode="json"),
                    "fills_per_step": None if row.report is None else asdict(row.report.fills),
                }
                for row in self.rows
            ],
        }

    def as_markdown(self) -> str:
        """The table and the definitions of its figures."""
        parts = [
            f"# {markdown.escape(self.title)}",
            markdown.table(self.header, [self.cells(row) for row in self.rows]),
            f"Published numbers: {markdown.escape(self.published_source)}." if self.published_source else "",
            "\n".join(f"- {markdown.escape(f'{name}: {text}')}" for name, text in self.notes),
            "\n".join(f"- **{each.title}**: {each.definition}" for each in self.measures),
            INTERVAL,
            markdown.table(["", ""], self.facts) if self.facts else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def as_html(self, plots: Plots = ()) -> str:
        """One file that loads no other."""
        return render(
            "comparison.html",
            comparison=self,
            interval=INTERVAL,
            plots=list(plots),
        )

    def as_table(self) -> Table:
        """The runs that were made, for the console. Values have no intervals, to fit into 80 columns."""
        table = Table(title=Text(self.title), title_justify="left", box=SIMPLE_HEAD)
        names = [*(self.rows[0].labels if self.rows else ())]
        for measure in self.measures:
            names += [measure.title, "paper"] if measure.published_as else [measure.title]
        for name in names:
            table.add_column(Text(name))
        for row in self.rows:
            if row.not_run:
                continue
            cells = [*row.labels.values()]
            for measure in self.measures:
                estimate = row.measured[measure.name]
                cells.append(format_number(estimate.value, measure.digits))
                if measure.published_as:
                    cells.append(format_published(row.published.get(measure.published_as)))
            table.add_row(*map(Text, cells))
        return table

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Why runs were not made, and the labels of the rows."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.not_run:
                found.setdefault(row.not_run, []).append(", ".join(row.labels.values()))
        return found


def write_comparison(
    folder: Path,
    title: str,
    rows: Sequence[ComparisonRow],
    *,
    published_source: str = "",
    plots: Plots = (),
) -> Comparison:
    """Write comparison.json, comparison.md and comparison.html into a folder that exists. Raises OSError."""
    comparison = Comparison(title, rows, published_source)
    write_json(folder / "comparison.json", comparison.as_dict())
    (folder / "comparison.md").write_text(comparison.as_markdown(), encoding="utf-8")
    (folder / "comparison.html").write_text(comparison.as_html(plots), encoding="utf-8")
    return comparison


def _measured(estimate: MeasuredValue | None, measure: Measure) -> str:
    if estimate is None:
        return ""
    interval = format_interval(estimate, measure.digits)
    return format_number(estimate.value, measure.digits) + (f" [{interval}]" if interval else "")
