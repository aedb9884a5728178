"""The commands of this package, which `lopa` finds by the entry points in pyproject.toml."""

from __future__ import annotations

from cluster.command_line.command_app import CommandApp
from cluster.command_line.installed_commands import Command, add_commands
from lopa_lab.cli import bench_commands, evaluation_commands, experiment_commands
from lopa_lab.cli.conformance_command import conformance

COMMANDS: dict[str, Command] = {
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
add_commands(app, COMMANDS)
