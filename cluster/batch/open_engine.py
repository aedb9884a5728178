"""`open_engine`: the engine that a command decodes with, in its own process or on Ray actors."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lopa_ray.engine.config import Config

if TYPE_CHECKING:
    from lopa_ray.engine.base import Engine


@contextmanager
def open_engine(config: Config, *, local: bool) -> Iterator[Engine]:
    """An engine in this process or on Ray actors; always closed, also on Ctrl-C."""
    engine: Engine
    if local:
        import torch

        from lopa_ray.engine.local import LocalEngine

        torch.set_num_threads(config.group.threads_per_worker)
        engine = LocalEngine.from_config(config)
    else:
        from actors.engine import RayEngine

        engine = RayEngine.from_config(config)
    try:
        yield engine
    finally:
        with _ignore_interrupts():
            engine.close()


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not cut short what the first one asked for."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread: it gets no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
