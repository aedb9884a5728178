"""`lopa bench all` and `lopa bench report`: folders of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.command_line.exit_status import FAILED, error_exit, exit_on_error
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import list_option


def measure_all(
    device: options.DeviceOption = "cpu",
    folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of records and plots; what is there is kept."
        ),
    ] = Path("runs/bench"),
    parts: Annotated[Any, list_option("--parts", options.WORDS, "Only these parts.")] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Start no further part after so long, and stop the one that runs.")
    ] = 9.0,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="The smallest sizes, to see in minutes that everything runs.")
    ] = False,
) -> None:
    """Everything that a kind of device can show, as records and plots in one folder.

    Run it again to measure the parts that are missing.
    """
    with exit_on_error():
        from lopa_lab.bench.all_parts import choose_parts, run_parts
        from lopa_lab.bench.parts import parts_of
        from lopa_lab.bench.report import RECORDS, write_report
        from lopa_lab.records.figure import require_matplotlib

        require_matplotlib()
        chosen = choose_parts(parts_of(device), parts)
        missing = run_parts(chosen, folder / RECORDS, seconds=60 * minutes, smallest=smallest, say=typer.echo)
        if len(missing) < len(chosen):
            typer.echo(f"Page: {write_report(folder)}")
    if missing:
        raise error_exit(f"{len(missing)} of {len(chosen)} parts are missing: {', '.join(missing)}", FAILED)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with records/ of lopa bench.")] = Path(
        "benchmarks"
    ),
) -> None:
    """Write a page with tables and plots of all records in a folder."""
    with exit_on_error():
        from lopa_lab.bench.report import write_report

        typer.echo(f"Page: {write_report(folder)}")
