"""`EngineOptions`: the options of a command that decodes, as one parameter of its function, at its place in the help:

def serve(*, engine: Annotated[EngineOptions, engine_options("model.*", "group.*", "set")]) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_args

from cluster.command_line.options import (
    ENGINE_OPTIONS,
    SETTINGS,
    ConfigOverrides,
    parse_overrides,
    refuse_beside,
)
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.model.wheels.wheel_model import WHEEL_MODELS


class EngineOptions(dict[str, Any]):
    """Name in `ENGINE_OPTIONS` → value; None, or False for a flag, if the command line does not have it."""

    def overrides(self) -> ConfigOverrides:
        """Raises SettingsError, also for `--local` together with options that only a group on Ray has a use for."""
        if self.get("local"):
            of_group = [name for name in self if SETTINGS.get(name, "").startswith("group.")]
            refuse_beside("--local", {name: self[name] for name in of_group})
        shorthands = {name: value for name, value in self.items() if name in SETTINGS}
        overrides = parse_overrides(self.get("set"), **shorthands)
        unknown = sorted(overrides.keys() - Config.model_fields.keys())
        if unknown:
            raise SettingsError(f"unknown section {unknown[0]!r}; allowed: {', '.join(Config.model_fields)}")
        return overrides

    def preset(self) -> str | None:
        """The preset that goes with the model of these options, if there is one. Raises SettingsError."""
        wheel = WHEEL_MODELS.get(str(self.overrides().get("model", {}).get("path")))
        return None if wheel is None else wheel.preset

    def load(self, source: str | None) -> Config:
        """A file or preset with these options on top; None: the model's preset, or demo. Raises SettingsError."""
        return Config.load(source or self.preset() or "demo", self.overrides())


def engine_options(*patterns: str, without: Collection[str] = ()) -> tuple[str, ...]:
    """The names of a command's options. A pattern is a name, or settings, as in `model.*`, for names that are left."""
    names = (
        name
        for pattern in patterns
        for name in ENGINE_OPTIONS
        if name == pattern or fnmatchcase(SETTINGS.get(name, ""), pattern)
    )
    return tuple(name for name in dict.fromkeys(names) if name not in without)


def declare_parameters(command: Callable[..., Any], parameters: Iterable[Parameter]) -> None:
    """Let typer see these parameters as the options of `command`, which gets them by name."""
    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    command.__signature__ = Signature(named)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in named}


def with_engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with options in place of its parameter of type `EngineOptions`, if it has one."""
    declared: list[Parameter] = []
    given_as = ""
    names: tuple[str, ...] = ()
    for parameter in signature(function, eval_str=True).parameters.values():
        if get_args(parameter.annotation)[:1] != (EngineOptions,):
            declared.append(parameter)
            continue
        given_as, names = parameter.name, get_args(parameter.annotation)[1]
        for name in names:
            default = False if name == "local" else None
            kind, annotation = Parameter.KEYWORD_ONLY, ENGINE_OPTIONS[name].annotation
            declared.append(Parameter(name, kind, default=default, annotation=annotation))
    if not given_as:
        return function

    @wraps(function)
    def command(**values: Any) -> Any:
        given = EngineOptions({name: values.pop(name) for name in names})
        return function(**values, **{given_as: given})

    declare_parameters(command, declared)
    return command
