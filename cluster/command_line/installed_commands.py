"""Commands that other installed packages add to `lopa`, by the entry points of one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import typer

ENTRY_POINT_GROUP = "lopa.commands"
"""An entry point of this group has the command's name, and is a `typer.Typer` or a function for Typer."""

Command: TypeAlias = "typer.Typer | Callable[..., Any]"


def add_commands(app: typer.Typer, commands: Mapping[str, Command]) -> None:
    """Add commands to an application, and groups of commands, by name."""
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def add_installed_commands(app: typer.Typer) -> None:
    """Add the commands of all installed packages, in order of their names."""
    installed = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
    add_commands(app, {entry.name: entry.load() for entry in installed})
