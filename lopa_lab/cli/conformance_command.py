"""What can be typed after `lopa conformance`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.exit_status import FAILED, exit_on_error


def conformance(
    cases: Annotated[list[Path], typer.Argument(help="Files of recorded cases (JSONL).", metavar="CASES...")],
    models: Annotated[Path, typer.Option(help="Folder of the recorded checkpoints; adapters in ../lora.")],
    workers: options.WorkersOption = None,
    tensor_parallel_size: options.TensorParallelSizeOption = None,
    device: Annotated[str, typer.Option(help=f"{options.allowed_values('device')}.")] = "cpu",
    implementation: Annotated[
        str, typer.Option(help=f"{options.allowed_values('implementation')}.")
    ] = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Replay recorded cases and say what differs first.

    Each row's kind is recognised by its keys. Without --workers and --tensor-parallel-size the cases
    run in this process, with one of them on a group of branch workers; logits never leave a worker, so
    forward cases are then skipped, and said to be. Exit status 1 if a case differs, is not supported or cannot be read,
    or if none was compared. Cases with a mask token in the prompt are refused by design, and do not count.
    """
    from lopa_lab.cli.conformance_report import run_conformance

    with exit_on_error():
        group = {"num_workers": workers, "tensor_parallel_size": tensor_parallel_size}
        given = {name: value for name, value in group.items() if value is not None}
        passed = run_conformance(
            cases, models, group=given, device=device, implementation=implementation, as_json=as_json
        )
    if not passed:
        raise typer.Exit(FAILED)
