"""`CommandApp`: the application that all commands of the project belong to."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _PlainFlags:
    """Help shows a flag without a type behind it, since it takes no value: `--local`, not `--local <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command, `--help` among them."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command that this is mixed into
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class CommandGroup(_PlainFlags, TyperGroup):
    """A command that has others below it."""


class CommandApp(typer.Typer):
    """A `typer.Typer` whose help shows flags without a type, and whose errors are this project's own."""

    def __init__(self, *, cls: type[CommandGroup] = CommandGroup, **options: Any) -> None:
        super().__init__(cls=cls, pretty_exceptions_enable=False, **options)

    def command(  # type: ignore[override]  # all of typer's other options pass through
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: add a function as a command. `options` are typer's."""
        add = super().command

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            text = options.pop("help", None) or _unwrapped(getdoc(function) or "")
            return add(name, cls=_Command, help=text, **options)(function)

        return decorate


def _unwrapped(text: str) -> str:
    """Each paragraph on one line, which typer then breaks to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))
