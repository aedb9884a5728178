"""NodeWeights: how a group's workers come to their weights: from one copy per node, which a worker there has read.

That worker reads, fuses, merges and quantises the parameters and puts them into Ray's object store; every
worker there builds its model from that copy. Workers on CPU map it, so it is their model's memory; others
upload from it. A `WeightsKeeper` owns the copies, so they outlive workers and masters.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from actors.branch_worker import Arrival, WorkerInfo
from actors.weights_keeper import weights_keeper
from lopa_ray.config import Config

STORE_SHARE = 0.5
"""A copy may take up so much of a node's object store; the rest is for all else that travels through it."""

ANSWER_S = 30.0
"""How long a keeper may take to say that it is there; it does nothing else for longer than a moment."""

logger = logging.getLogger("lopa.weights")


class NodeWeights:
    """The copies of one model's weights, as one group uses them. For the master's event loop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._keeper = weights_keeper(config)

    async def load(self, worker: Any) -> WorkerInfo:
        """Have a worker's actor load its model, or its shard of it.

        Raises what reading raised, or ObjectLostError for a copy that is gone; the next worker on that node
        then makes another.
        """
        parcels = None
        if self._keeper is not None:
            arrival: Arrival = await worker.arrive.remote()
            if _has_room(arrival):
                parcels = await self._copy(arrival, worker)
        try:
            info: WorkerInfo = await worker.load.remote(parcels)
        except ObjectLostError:
            if self._keeper is not None:
                self._keeper.forget.remote(arrival.node_id)
            raise
        return info

    async def _copy(self, arrival: Arrival, worker: Any) -> list[Any] | None:
        """The copy on the worker's node; None if there is nobody to keep it, so that it reads for itself."""
        for _ in range(2):
            keeper = self._keeper
            assert keeper is not None
            try:
                await asyncio.wait_for(keeper.ping.remote(), ANSWER_S)
                parcels: list[Any] = await keeper.copy.remote(arrival.node_id, arrival.stamp, worker)
            except RayTaskError as error:
                raise error.cause from None  # of the worker, or of what it read
            except (RayActorError, TimeoutError) as error:
                # It went with another group, or hangs. Others may have another keeper by now.
                if isinstance(error, TimeoutError):
                    ray.kill(keeper)
                if self._keeper is keeper:
                    self._keeper = weights_keeper(self._config)
            else:
                return parcels
        logger.warning(
            f"a worker on node {arrival.node_id[:8]} reads the weights for itself: their keeper ended twice"
        )
        return None


def _has_room(arrival: Arrival) -> bool:
    stores = (
        node["Resources"].get("object_store_memory", 0.0)
        for node in ray.nodes()
        if node["NodeID"] == arrival.node_id
    )
    store, needed = sum(stores), arrival.weight_bytes
    fits = bool(needed <= store * STORE_SHARE)
    if not fits:
        logger.warning(
            f"each worker on node {arrival.node_id[:8]} reads the weights for itself: a copy of "
            f"{needed / 2**30:.1f} GiB is too much for its object store of {store / 2**30:.1f} GiB; start Ray there "
            f"with --object-store-memory {needed / STORE_SHARE:.0f} or more"
        )
    return fits
