"""`open_engine`: the engine that a command decodes with, in its own process or on Ray actors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cluster.command_line.end_signals import ignored_signals
from cluster.command_line.progress import ShownTask
from lopa_ray.engine.config import Config
from lopa_ray.execution.model_files import download_weights, pin_model, unmade_model
from lopa_ray.model.hub.repository import short_name

if TYPE_CHECKING:
    from lopa_ray.engine.base import Engine


@contextmanager
def open_engine(config: Config, *, local: bool) -> Iterator[Engine]:
    """An engine in this process or on Ray actors, which is always closed. A terminal shows what it waits for."""
    config = pin_model(config)
    if local or not os.environ.get("RAY_ADDRESS"):
        if (unmade := unmade_model(config.model)) is not None:
            with ShownTask(f"Fetching {unmade.requirement}", unit="tensors converted") as task:
                unmade.make(task.move_within)
        download_weights(config.model)  # it has progress bars of its own
    engine = _open_local(config) if local else _open_on_ray(config)
    try:
        yield engine
    finally:
        with ignored_signals():
            engine.close()


def _open_local(config: Config) -> Engine:
    with ShownTask(f"Loading {short_name(config.model.path)}"):
        import torch

        from lopa_ray.engine.local import LocalEngine

        torch.set_num_threads(config.group.threads)
        return LocalEngine.from_config(config)


def _open_on_ray(config: Config) -> Engine:
    began = time.monotonic()
    with ShownTask("Importing Ray") as task:
        from actors.engine import RayEngine

        engine = RayEngine.from_config(config, on_phase=task.describe)
        if task.visible:
            workers = engine.num_workers
            task.say(f"{workers} worker{'s' * (workers > 1)} ready after {time.monotonic() - began:.0f} s")
        return engine
