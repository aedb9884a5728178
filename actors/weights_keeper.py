"""WeightsKeeper: the copies of one model's weights in Ray's object store, one per node, for all groups that run it.

An actor of its own, since objects go with the process that asked for them, and groups come and go.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import ray

import actors.branch_worker  # noqa: F401 - a worker's handle takes it, and torch with it: better while workers start
from lopa_ray.config import Config


@dataclass(slots=True)
class _Node:
    """What a node has."""

    stamp: object = None
    """Of the files that the copy was made of."""
    parcels: list[Any] | None = None
    """Object references of the copy; None: there is none yet."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a worker makes the copy; the others wait for it."""


class WeightsKeeper:
    """Has one worker per node read the weights, and hands them to all others there."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def ping(self) -> None:
        """Answers while it is alive."""

    async def copy(self, node_id: str, stamp: object, worker: Any) -> list[Any]:
        """The parcels of `worker`'s node, made by it if there are none, or if they are of other files than `stamp`.

        Raises what reading raised; the next who asks then makes them.
        """
        node = self._nodes.setdefault(node_id, _Node())
        async with node.reading:
            if node.parcels is None or node.stamp != stamp:
                node.parcels = None
                made = worker.publish.options(num_returns="streaming").remote()
                parcels = [parcel async for parcel in made]
                await made.completed()  # raises what reading raised
                node.stamp, node.parcels = stamp, parcels
            return node.parcels

    def forget(self, node_id: str) -> None:
        """The node's copy turned out to be gone."""
        self._nodes.pop(node_id, None)


def weights_keeper(config: Config) -> Any | None:
    """The keeper of the configuration's weights, started unless this namespace has it; None if they are not copied.

    It ends with whoever started it, and the copies with it; who has mapped one keeps it.
    """
    model = config.model
    if model.load_format == "dummy":
        return None  # drawn where they are used, faster than copied
    which = repr((model.path, model.lora, model.dtype, model.quantization))
    name = f"lopa-weights-{hashlib.sha256(which.encode()).hexdigest()[:16]}"
    remote: Any = ray.remote(WeightsKeeper).options(name=name, get_if_exists=True, num_cpus=0, max_restarts=0)
    return remote.remote()
