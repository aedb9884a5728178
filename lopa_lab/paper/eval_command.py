"""`lopa eval paper`: one benchmark, its report, its figures on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.batch.open_engine import open_engine
from lopa_lab.paper.reports.run_report import RunReport
from lopa_lab.paper.runs.run import RunOptions, run_benchmark, with_concurrency
from lopa_lab.paper.tasks.benchmarks import check_benchmark
from lopa_ray.engine.config import Config


def run_command(name: str, config: Config, output: Path, options: RunOptions) -> None:
    """`lopa eval paper`: run a benchmark, write its report into the folder `output`, print its figures."""
    check_benchmark(name, options.data, options.shots_data)
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
