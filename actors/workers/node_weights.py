"""NodeWeights: one copy of the weights per node, downloaded and read once, and shared by the node's workers. The first
worker on a node reads the parameters and puts them into Ray's object store. Workers on CPU map the copy as their
model's memory; others upload from it. The master owns the copies, so they outlive the worker that made them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, cast

import ray
from ray.exceptions import ObjectLostError

from actors.calls.worker_handle import WorkerInfo
from actors.workers.branch_worker import STAGING
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.execution.model_files import is_on_hub
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource

STORE_SHARE = 0.75  # maximum share of a node's object store for a copy; the rest is for other objects

logger = logging.getLogger("lopa.weights")


@dataclass(slots=True)
class _NodeState:
    chunks: list[Any] | None = None  # object references of the copy; None: there is none yet
    downloaded: bool = False
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # during download and copy; others wait


class NodeWeights:
    """The copies of one group's weights. For the master's event loop."""

    def __init__(self, config: ExecutionConfig, source: WeightSource = AT_START) -> None:
        """The only actor of a group reads for itself, because a shared copy would need more memory. `source`: whose
        weights they are, for workers that compute with others (see `stage`)."""
        self._config, self._source = config, source
        self.shared = config.group.max_actors > 1
        # Drawing them in the worker is faster than a copy.
        self._random = config.model.load_format == "dummy" and source == AT_START
        self._on_hub = is_on_hub(config.model)
        self._nodes: dict[str, _NodeState] = {}

    def anew(self, source: WeightSource | None = None) -> NodeWeights:
        """For workers that load other weights of the same model (None: these), without a copy so far."""
        other = NodeWeights(self._config, source or self._source)
        other.shared = self.shared
        return other

    async def stage(self, worker: Any) -> None:
        """Have a worker's actor stage its model or shard. Raises as `load`."""
        await self._load(worker, worker.stage, self._source)

    async def load(self, worker: Any) -> WorkerInfo:
        """Have a worker's actor load its model or shard. Raises what it raises, as ObjectLostError for a lost copy."""
        return cast(WorkerInfo, await self._load(worker, worker.load_model))

    async def _load(self, worker: Any, load: Any, *source: WeightSource) -> Any:
        if self._random or not (self.shared or self._on_hub):
            return await load.remote(None, *source)
        node_id, needed = await worker.node_and_weight_bytes.remote()
        node = self._nodes.setdefault(node_id, _NodeState())
        shares = self.shared and _fits_object_store(node_id, needed)
        async with node.busy:
            if self._on_hub and not node.downloaded:
                await worker.download_weights.remote()
                node.downloaded = True
            if shares and node.chunks is None:
                group = {"concurrency_group": STAGING} if source else {}
                reading = worker.read_weights.options(num_returns="streaming", **group).remote(*source)
                chunks = [chunk async for chunk in reading]
                await reading.completed()  # raises the exception of the reading worker
                node.chunks = chunks
            copy = node.chunks if shares else None
        try:
            return await load.remote(copy, *source)
        except ObjectLostError:
            node.chunks = None
            raise


def _fits_object_store(node_id: str, needed: int) -> bool:
    store = sum(n["Resources"].get("object_store_memory", 0.0) for n in ray.nodes() if n["NodeID"] == node_id)
    fits = bool(needed <= store * STORE_SHARE)
    if not fits:
        logger.warning(
            f"each worker on node {node_id[:8]} reads the weights for itself: a copy of {needed / 2**30:.1f} GiB is "
            f"too much for its object store of {store / 2**30:.1f} GiB; start Ray there with "
            f"--object-store-memory {needed / STORE_SHARE:.0f} or more"
        )
    return fits
