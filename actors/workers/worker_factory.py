"""WorkerFactory: the actors of a group's workers, from a place in the cluster to a loaded model, and their end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from actors.calls.worker_handle import RunnerFactory, WorkerHandle, WorkerInfo
from actors.transfer.rendezvous import RendezvousStore
from actors.workers.branch_worker import HEALTH, STAGING, BranchWorker
from actors.workers.node_weights import NodeWeights
from actors.workers.placement import Allocation, BundleAllocator, actor_options
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.weight_source import WeightSource


class WorkerFactory:
    """Creates workers, has them load their model, and kills them. None of them takes part in a step before it joins."""

    def __init__(
        self,
        spec: ModelSpec,
        runner_factory: RunnerFactory | None = None,
        reserved: PlacementGroup | None = None,
        name: str = "group",
    ) -> None:
        """`reserved`: see `Reservation`. `name`: of the group, in the names of its workers."""
        self.config = config = spec.config
        self.store = RendezvousStore(DEVICES[config.model.device].collective_backend)
        self._spec = spec
        self._runner_factory = runner_factory
        self._names = (f"{name}/worker-{number}" for number in itertools.count())
        self._allocator = BundleAllocator(reserved, config)
        self._allocations: dict[WorkerHandle, Allocation] = {}
        self._warm_ups = 0
        self._resolved: ModelSpec | None = None  # without `auto`: values that the first worker measured
        self._resolving = asyncio.Lock()
        self.weights = NodeWeights(config, spec.weights)

    def use(self, source: WeightSource, weights: NodeWeights) -> None:
        """Workers load these weights from now on."""
        self.weights, self._spec = weights, replace(self._spec, weights=source)
        if self._resolved is not None:
            self._resolved = replace(self._resolved, weights=source)

    def create(self) -> WorkerHandle:
        """A new worker without a model. Ray places it when there is room."""
        allocation = self._allocator.allocate()
        name = next(self._names)
        actor: Any = ray.remote(  # type: ignore[call-overload]  # Ray's types lack the option
            concurrency_groups={HEALTH: 1, STAGING: 1}
        )(BranchWorker)
        remote = actor.options(**actor_options(self.config), **allocation.options)
        shards = range(self.config.group.tensor_parallel_size)
        try:
            actors = [remote.remote(self._spec, self._runner_factory, shard, name) for shard in shards]
        except BaseException:
            self._allocator.release(allocation)
            raise
        worker = WorkerHandle(tuple(actors))
        self._allocations[worker] = allocation
        return worker

    def kill(self, worker: WorkerHandle) -> None:
        """Kill a worker, in a pool or on its way there, and free its bundle."""
        worker.kill()
        allocation = self._allocations.pop(worker, None)
        if allocation is not None:
            self._allocator.release(allocation)

    async def load_model(self, worker: WorkerHandle) -> WorkerInfo:
        """Have a worker load its model, every shard its part. Raises what `NodeWeights.load` raises."""
        if self._spec.has_auto:
            async with self._resolving:
                if self._resolved is None:
                    self._resolved = await worker.shards[0].resolve_auto.remote()
            await asyncio.gather(*(shard.use.remote(self._resolved) for shard in worker.shards))
        info, *_ = await asyncio.gather(*map(self.weights.load, worker.shards))
        if self._spec.needs_warm_up and len(worker.shards) > 1:
            await self._warm_up(worker)
        return info

    async def _warm_up(self, worker: WorkerHandle) -> None:
        """Have shards compile their kernels together, before their first step: in a step they would count as hung."""
        self._warm_ups += 1
        size, epoch, limit_s = len(worker.shards), -1 - self._warm_ups, self.config.group.start_timeout_s
        places = [await self.store.rendezvous("warm-up", rank, size, epoch, limit_s) for rank in range(size)]
        pairs = zip(worker.shards, places, strict=True)
        await asyncio.gather(*(shard.warm_up.remote(place) for shard, place in pairs))
