"""The place where a command decodes that needs no Ray: its own process, or Ray if something asks for that."""

from __future__ import annotations

import os
from collections.abc import Collection

import typer

from cluster.command_line.engine_options import EngineOptions
from cluster.command_line.notices import notice
from cluster.command_line.options import SETTINGS
from lopa_ray.engine.config import Config
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_files import DEMO

DEMO_LINE = "The demo model solves arithmetic word problems alone; --model takes another."
OF_GROUP = [name.removeprefix("group.") for name in SETTINGS.values() if name.startswith("group.")]
ASKING_SETTINGS = (*OF_GROUP, "scaling")  # settings that only Ray has a use for


def reason_for_ray(config: Config, *, source: str | None, options: Collection[str]) -> str | None:
    """Why to decode on Ray, as words of a message; None: nothing asks for it. `source`: the file or preset of the
    command line, if it names one. `options`: the settings of `group` that it sets."""
    for setting in ASKING_SETTINGS:
        if setting in options:
            return f"the command line sets group.{setting}"
        if source is not None and setting in config.group.model_fields_set and getattr(config.group, setting):
            return f"{source} sets group.{setting}"
    if os.environ.get("RAY_ADDRESS"):
        return "RAY_ADDRESS is set"
    device = DEVICES[config.model.device]
    number = device.count()
    return f"there are {number} devices ({device.name})" if number > 1 else None


def is_local(
    config: Config, engine: EngineOptions, source: str | None, demo_cannot: str | None = None
) -> bool:
    """Whether to decode in this process: with `--local`, or if nothing asks for Ray. Lines on stderr say where and why,
    and what the demo model is for; `demo_cannot`: the feature of this command that it was not trained for."""
    reason = None
    if not engine["local"]:
        reason = reason_for_ray(config, source=source, options=engine.overrides().get("group", {}))
        line = where_line(config, reason)
        if reason is None:
            notice(line)
        else:
            typer.echo(line, err=True)
    if config.model.path == DEMO and demo_cannot is None:
        notice(DEMO_LINE)
    elif config.model.path == DEMO:
        typer.echo(f"The demo model {demo_cannot}; --model takes another.", err=True)
    return reason is None


def where_line(config: Config, reason: str | None) -> str:
    if reason is None:
        return "Decoding in this process; --workers N decodes on N workers of Ray."
    workers = config.group.num_workers
    address = os.environ.get("RAY_ADDRESS")
    ray = f"the Ray at {address}" if address else "a local Ray"
    return f"Decoding on {workers} worker{'s' * (workers > 1)} of {ray}: {reason}."
