"""A group's server over an engine in this process, for calls that need no workers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine

if TYPE_CHECKING:
    from cluster.serving.replica.group_server import GroupServer


def local_group(config: Config, model: str = "served") -> tuple[GroupServer, LocalEngine]:
    """`model`: the name that requests have."""
    from cluster.serving.replica.group_server import GroupServer  # imports ray, which other tests do not need

    server = GroupServer(model, config.given())
    engine = server._engine = LocalEngine.from_config(config)
    return server, engine


@cache
def demo_group(model: str) -> tuple[GroupServer, LocalEngine]:
    return local_group(Config.load("demo"), model)
