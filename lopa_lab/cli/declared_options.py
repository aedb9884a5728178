"""Commands that share options: each option is declared once, as a parameter of a function."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any


def declare_options(command: Callable[..., Any], *functions: Callable[..., Any]) -> None:
    """Let typer see the parameters of `functions` as the options of `command`."""
    parameters = {
        name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for function in functions
        for name, parameter in signature(function, eval_str=True).parameters.items()
    }
    command.__signature__ = signature(command).replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
