"""`lopa reproduce`: a table or figure of the paper on a model at hand, printed and written beside published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lopa_lab.paper.reports.comparison import ComparisonRow, write_comparison
from lopa_lab.paper.reports.plots import BranchPoint, branches_plot, fills_plot
from lopa_lab.paper.reports.report import write_reports
from lopa_lab.paper.reports.report_content import Report
from lopa_lab.paper.reports.statistics import FillsPerStep
from lopa_lab.paper.runs.run import RunOptions
from lopa_lab.paper.tables.run_cells import CellResult, Selection, run_cells

TITLES = {
    "table1": "Table 1: Dream and D2F-Dream",
    "table2": "Table 2: DiffuCoder and D2F-DiffuCoder",
    "table3": "Table 3: systems",
    "table4": "Table 4: settings S1 to S18",
    "table7": "Table 7: speed beside other systems",
    "fig4": "Figure 4: TPF and score against branches",
    "fig5": "Figure 5: tokens decided per step",
}

MOST_NAMED = 6
"""Cells that the console names for a reason; more of them are counted."""

SOURCE = "LoPA, arXiv 2512.16229"


def reproduce_command(table: str, selection: Selection, output: Path, options: RunOptions) -> bool:
    """Run the chosen cells of a table or figure, print them beside the paper's numbers, and write comparison.json,
    .md and .html into `output`, with a report per run in folders below. Returns whether there are runs and none failed.

    The three files are written anew after every cell, so that a command that was killed leaves what it has. Raises what
    `run_cells` raises.
    """
    title = TITLES.get(table, table)
    if selection.stand_in is not None:
        title += f" ({selection.stand_in} in the place of each task)"
    reports: dict[Path, Report] = {}
    results: list[CellResult] = []
    for results in run_cells(table, selection, output, options):
        output.mkdir(parents=True, exist_ok=True)
        rows = [_row(result, output, reports) for result in results]
        write_comparison(output, title, rows, published_source=SOURCE)
    comparison = write_comparison(
        output, title, rows, published_source=SOURCE, plots=list(_plots(table, results, reports))
    )
    console = Console()
    console.print(comparison.as_table())
    for names, note in comparison.notes:
        console.print(f"{names}: {note}", markup=False)
    for reason, unrun in comparison.reasons.items():
        named = "; ".join(unrun) if len(unrun) <= MOST_NAMED else f"{len(unrun)} cells"
        console.print(f"Not run: {reason} ({named})", markup=False)
    console.print(f"Written: {output / 'comparison.html'}, comparison.md, comparison.json", markup=False)
    return bool(reports) and not any(result.failed for result in results)


def _row(result: CellResult, output: Path, reports: dict[Path, Report]) -> ComparisonRow:
    """A cell's row; the report of its run is written into the run's folder, and kept in `reports`."""
    cell, finished = result.cell, result.finished
    labels = {"row": cell.row, "task": cell.column}
    if finished is None:
        return ComparisonRow(labels, cell.published, not_run=result.reason)
    if finished.folder not in reports:
        reports[finished.folder] = write_reports(finished.folder, finished.info, finished.records)
    folder = finished.folder.relative_to(output)
    row = ComparisonRow.of_run(labels, reports[finished.folder], cell.published, str(folder))
    return replace(row, notes=tuple(note for note in (cell.note, result.note, *row.notes) if note))


def _plots(
    table: str, results: Sequence[CellResult], reports: Mapping[Path, Report]
) -> Iterator[tuple[str, str]]:
    """Figure 4 has a plot per model and task with runs, Figure 5 one per task."""
    if table not in ("fig4", "fig5"):
        return
    groups: dict[str, list[tuple[CellResult, Report]]] = {}
    for result in results:
        if result.finished is not None:
            model = result.cell.row.partition(" ")[0]
            run = result, reports[result.finished.folder]
            groups.setdefault(f"{model}, {result.cell.column}", []).append(run)
    for name, runs in groups.items():
        if table == "fig4":
            points = [_point(report) for _, report in runs]
            plain = [point for point in points if point.num_branches == 1]
            yield name, branches_plot(points, plain[0].score.value if plain else None)
        else:
            curves: dict[str, FillsPerStep] = {
                result.cell.row.partition(" ")[2]: report.fills for result, report in runs
            }
            yield name, fills_plot(curves)


def _point(report: Report) -> BranchPoint:
    decode = report.run.settings["decode"]
    branches = decode["num_branches"] if decode["decoder"] == "lopa" else 1
    return BranchPoint(branches, report.summary.figures["tpf"], report.summary.scores[report.run.metric])
