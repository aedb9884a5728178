"""`CommandApp`: the application that all commands of the project belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from cluster.command_line.engine_options import with_engine_options
from cluster.command_line.exit_status import exit_on_error

ENTRY_POINT_GROUP = "lopa.commands"
_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}  # so that 80 columns fit long options


class _ShortTypes:
    """Help shows values as in `--port N`, and a flag without one: `--local`, not `--local <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command that this is mixed into
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif isinstance(parameter, TyperOption) and parameter.metavar is None:
                kind = parameter.display_type(ctx).strip("<>").removesuffix(" range")
                parameter.metavar = _METAVARS.get(kind)
        return parameters


class _Command(_ShortTypes, TyperCommand):
    pass


class CommandGroup(_ShortTypes, TyperGroup):
    pass


class CommandApp(typer.Typer):
    """A `typer.Typer` whose help is short enough for 80 columns, and whose errors are this project's own."""

    def __init__(self, *, cls: type[CommandGroup] = CommandGroup, **options: Any) -> None:
        super().__init__(cls=cls, pretty_exceptions_enable=False, **options)

    def command(  # type: ignore[override]  # all of typer's other options pass through
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: add a function as a command. `options` are typer's; see `with_engine_options`, `exit_on_error`."""
        add = super().command

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            text = options.pop("help", None) or _unwrapped(getdoc(function) or "")
            command = exit_on_error()(with_engine_options(function))
            add(name, cls=_Command, help=text, **options)(command)
            return function

        return decorate

    def add_commands(self, commands: Mapping[str, typer.Typer | Callable[..., Any]]) -> None:
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                self.add_typer(command, name=name)
            else:
                self.command(name)(command)

    def add_installed_commands(self) -> None:
        """Add the commands of all installed packages: a `typer.Typer` or a function per entry point, by its name."""
        installed = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
        self.add_commands({entry.name: entry.load() for entry in installed})


def _unwrapped(text: str) -> str:
    """Each paragraph on one line, which typer then breaks to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))
