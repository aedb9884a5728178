"""What is said of the model in the package where a command decodes with it."""

from __future__ import annotations

import typer

from lopa_ray.engine.config import Config
from lopa_ray.execution.model_files import DEMO

DEMO_LINE = "The demo model solves arithmetic word problems alone; --model takes another."


def warn_of_demo_model(config: Config) -> None:
    """A line on stderr if the configured model is the one in the package: its other answers make no sense."""
    if config.model.path == DEMO:
        typer.echo(DEMO_LINE, err=True)
