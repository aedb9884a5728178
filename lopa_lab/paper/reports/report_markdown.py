"""A report as Markdown."""

from __future__ import annotations

import yaml

from lopa_lab.paper.reports.measures import INTERVAL, definitions
from lopa_lab.paper.reports.report_content import Report
from lopa_lab.paper.reports.report_facts import run_facts
from lopa_lab.records import markdown


def report_markdown(report: Report) -> str:
    """Notes, figures with definitions, what was run, and all settings."""
    run = report.run
    header = ["figure", "value", "95 % interval", "unit", "definition"]
    published = [each.published_value for each in report.rows]
    rows = [
        [each.measure.title, each.value, each.interval, each.measure.unit, each.measure.definition]
        for each in report.rows
    ]
    if report.has_published:
        header.insert(3, "published")
        rows = [[*row[:3], value, *row[3:]] for row, value in zip(rows, published, strict=True)]
    parts = [
        f"# {markdown.escape(run.title)}, {run.shots}-shot: {markdown.escape(run.config_name)}",
        f"{markdown.escape(run.model)}, {report.decoded}. `{run.metric}` is to be compared with the paper's score.",
        "\n".join(f"- {markdown.escape(note)}" for note in report.notes),
        "## Figures",
        markdown.table(header, rows),
        f"Published numbers: {markdown.escape(report.published_source)}." if report.published_source else "",
        INTERVAL,
        "## Run",
        markdown.table(["", ""], [[name, value] for name, value in run_facts(report)]),
        markdown.code_block(run.command_line, "sh"),
        "## Settings",
        markdown.code_block(
            yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True).rstrip(), "yaml"
        ),
        "Answers and figures of every problem are in records.jsonl, and report.html shows them.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def definitions_markdown() -> str:
    """The table of all measures."""
    rows = [[f"`{each.name}`", each.title, each.unit, each.definition] for each in definitions()]
    return markdown.table(["in JSON", "figure", "unit", "definition"], rows)
