"""A report as one HTML file that loads no other: styles and figures are inside of it."""

from __future__ import annotations

from collections.abc import Sequence

from lopa_lab.paper.reports.measures import INTERVAL
from lopa_lab.paper.reports.number_format import format_number
from lopa_lab.paper.reports.pages import render
from lopa_lab.paper.reports.plots import fills_plot, latency_scatter, tpf_histogram, tps_histogram
from lopa_lab.paper.reports.report_content import Report
from lopa_lab.paper.reports.report_facts import run_facts
from lopa_lab.paper.runs.problem_record import ProblemRecord

_SHOWN_FIRST = ("tpf", "avg_tps", "latency_s")
"""Measures that the page shows in large type, beside the paper's score and what has a published number."""


def report_html(report: Report, records: Sequence[ProblemRecord]) -> str:
    """The page. It has every problem's answer, so its size grows with the records'."""
    run = report.run
    return render(
        "report.html",
        report=report,
        records=records,
        facts=run_facts(report),
        first=[
            row
            for row in report.rows
            if row.measure.name in (run.metric, *_SHOWN_FIRST) or row.published is not None
        ],
        interval=INTERVAL,
        number=format_number,
        plots=_plots(report, records) if records else [],
    )


def _plots(report: Report, records: Sequence[ProblemRecord]) -> list[tuple[str, str]]:
    fills = "Tokens decided in each step: mean over the problems that have the step, and their middle half"
    plots = [
        (fills, fills_plot({report.run.config_name: report.fills})),
        ("TPF of the problems", tpf_histogram(records, report.run.metric)),
    ]
    if report.summary.figures["latency_s"].count:
        plots += [
            ("Speed of the problems", tps_histogram(records)),
            ("Latency over the length of the answer", latency_scatter(records)),
        ]
    return plots
