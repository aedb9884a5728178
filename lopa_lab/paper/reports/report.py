"""Reports of a run: files in its folder, and a table on the console."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lopa_lab.paper.reports.report_content import Report
from lopa_lab.paper.reports.report_html import report_html
from lopa_lab.paper.reports.report_markdown import report_markdown
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run_info import RunInfo


def write_reports(
    folder: Path,
    run: RunInfo,
    records: Sequence[ProblemRecord],
    *,
    published: Mapping[str, float | None] | None = None,
    published_source: str = "",
) -> Report:
    """Write report.json, report.md and report.html into a folder that exists; returns their content. Needs matplotlib.

    `published`: numbers of the paper by their names in `lopa_lab.paper.reports.measures.PUBLISHED`, the score in
    percent; `published_source` says where they are from. Raises SettingsError for other names, OSError.
    """
    report = Report.make(run, records, published=published, published_source=published_source)
    write_json(folder / "report.json", report.as_dict())
    (folder / "report.md").write_text(report_markdown(report), encoding="utf-8")
    (folder / "report.html").write_text(report_html(report, records), encoding="utf-8")
    return report


def summary_table(
    run: RunInfo,
    records: Sequence[ProblemRecord],
    *,
    published: Mapping[str, float | None] | None = None,
) -> Table:
    """The figures and notes for the console; `published` as in `write_reports`."""
    report = Report.make(run, records, published=published)
    table = Table(
        "",
        title=Text(f"{run.title}, {run.shots}-shot: {run.config_name}, {report.decoded}"),
        caption=Text("\n".join(report.notes), justify="left"),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("value", "95 % interval", *(["published"] if report.has_published else [])):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for row in report.rows:
        cells = [row.measure.title, row.value, row.interval]
        cells += [row.published_value] if report.has_published else []
        table.add_row(*map(Text, cells), row.measure.unit)
    return table


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Strict JSON. Raises ValueError for numbers that JSON does not have."""
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
