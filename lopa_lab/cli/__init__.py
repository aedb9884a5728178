"""The commands of this package, which `lopa` finds by the entry points in pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from cluster.command_line.command_app import CommandApp
from lopa_lab.cli import bench_commands, evaluation_commands, experiment_commands
from lopa_lab.cli.conformance_command import conformance

COMMANDS: dict[str, typer.Typer | Callable[..., Any]] = {
    "bench": bench_commands.app,
    "conformance": conformance,
    "eval": evaluation_commands.app,
    "experiment": experiment_commands.app,
    "reproduce": evaluation_commands.reproduce,
}

app = CommandApp(
    name="python -m lopa_lab.cli",
    help="Benchmarks, evaluation, experiments and recorded decodes of lopa-ray.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_commands(COMMANDS)
