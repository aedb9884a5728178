"""`lopa eval paper` and `lopa reproduce`: run, write reports, print figures on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.batch.open_engine import open_engine
from lopa_lab.hub_connection import use_cache_without_hub
from lopa_lab.paper.reports.run_report import RunReport
from lopa_lab.paper.runs.run import RunOptions, run_benchmark, with_concurrency
from lopa_lab.paper.tables.cell_comparison import CellComparison
from lopa_lab.paper.tables.run_cells import Selection, run_cells
from lopa_lab.paper.tasks.benchmarks import WORD_PROBLEMS, check_benchmark, open_benchmark
from lopa_ray.engine.config import Config

TITLES = {
    "table1": "Table 1: Dream and D2F-Dream",
    "table2": "Table 2: DiffuCoder and D2F-DiffuCoder",
    "table3": "Table 3: systems",
    "table4": "Table 4: settings S1 to S18",
    "table7": "Table 7: speed beside other systems",
    "fig4": "Figure 4: TPF and score against branches",
    "fig5": "Figure 5: tokens decided per step",
}


def run_paper(name: str, config: Config, output: Path, options: RunOptions) -> None:
    """`lopa eval paper`: run a benchmark, write its report into the folder `output`, print its figures."""
    check_benchmark(name, options.data, options.shots_data)
    if name != WORD_PROBLEMS and options.data is None and not use_cache_without_hub():
        open_benchmark(name)  # raises before a model is loaded
    with open_engine(with_concurrency(config, options.concurrency), local=options.local) as engine:
        report = RunReport(run_benchmark(engine, name, config, output, options))
    report.write()
    console = Console()
    console.print(report.as_table())
    console.print(f"Report: {output / 'report.md'}, report.json; answers: records.jsonl", markup=False)
    if report.summary.graded < report.summary.problems:
        console.print(
            "The answers are programs, which were not executed; add --allow-code-execution to grade them.",
            markup=False,
        )


def reproduce(table: str, selection: Selection, output: Path, options: RunOptions) -> bool:
    """`lopa reproduce`: run the chosen cells of a table or figure, print them beside the paper's numbers, and write
    comparison.json and comparison.md into `output`, with a report per run in folders below. Returns whether there are
    runs and none failed.

    Both files are written anew after every cell, so that a command that was killed leaves what it has. Raises what
    `run_cells` raises.
    """
    title = TITLES.get(table, table)
    if selection.stand_in != WORD_PROBLEMS:
        use_cache_without_hub()
    if selection.stand_in is not None:
        title += f" ({selection.stand_in} in the place of each task)"
    for results in run_cells(table, selection, output, options):
        comparison = CellComparison(title, results, output)
        comparison.write()
    console = Console()
    console.print(comparison.as_table())
    for line in [*comparison.notes, *comparison.not_run]:
        console.print(line, markup=False)
    console.print(f"Written: {output / 'comparison.md'}, comparison.json", markup=False)
    return any(result.report for result in results) and not any(result.failed for result in results)
