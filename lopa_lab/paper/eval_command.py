"""`lopa eval paper`: one benchmark, its reports, its figures on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.batch.open_engine import open_engine
from lopa_lab.paper.reports.report import summary_table, write_reports
from lopa_lab.paper.runs.run import RunOptions, run_benchmark, with_concurrency
from lopa_lab.paper.tasks.benchmarks import check_benchmark
from lopa_ray.engine.config import Config


def run_command(name: str, config: Config, output: Path, options: RunOptions) -> None:
    """`lopa eval paper`: run a benchmark, write its reports into the folder `output`, print its figures."""
    check_benchmark(name, options.data, options.shots_data)
    with open_engine(with_concurrency(config, options.concurrency), local=options.local) as engine:
        finished = run_benchmark(engine, name, config, output, options)
    write_reports(output, finished.info, finished.records)
    console = Console()
    console.print(summary_table(finished.info, finished.records))
    console.print(
        f"Reports: {output / 'report.html'}, report.md, report.json; answers: records.jsonl", markup=False
    )
    if any(record.scores is None for record in finished.records):
        console.print(
            "The answers are programs, which were not executed; add --allow-code-execution to grade them.",
            markup=False,
        )
