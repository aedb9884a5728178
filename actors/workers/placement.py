"""Placement of a group's workers: a bundle each, reserved together, so that a group has all of them or none."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import CapacityError
from lopa_ray.execution.device import DEVICES


def worker_bundle(config: ExecutionConfig) -> dict[str, float]:
    """Ray resource → what one worker takes of it, all its shards together."""
    shards = config.group.tensor_parallel_size
    return {name: amount * shards for name, amount in _actor_bundle(config).items()}


def _actor_bundle(config: ExecutionConfig) -> dict[str, float]:
    """The same for one shard; without resources of which it takes nothing."""
    group, resource = config.group, DEVICES[config.model.device].ray_resource
    bundle = {"CPU": group.num_cpus, **group.resources}
    if resource != "CPU":
        bundle[resource] = group.num_accelerators
    return {name: amount for name, amount in bundle.items() if amount}


def actor_options(config: ExecutionConfig) -> dict[str, Any]:
    """Options of the Ray actor of a worker, or of a shard. The master replaces lost workers, so Ray restarts none."""
    bundle = _actor_bundle(config)
    options: dict[str, Any] = {"num_cpus": bundle.pop("CPU", 0.0), "max_restarts": 0, "max_task_retries": 0}
    if "GPU" in bundle:
        options["num_gpus"] = bundle.pop("GPU")
    if bundle:
        options["resources"] = bundle
    return options


class Reservation:
    """A placement group with a bundle per worker. Inside of another placement group (a Serve replica's) there is none:
    workers then go into the bundles of that one by themselves."""

    def __init__(self, config: ExecutionConfig) -> None:
        """Asks for the bundles without waiting for them."""
        bundle = worker_bundle(config)
        self.placement_group: PlacementGroup | None = None
        if bundle and ray.util.get_current_placement_group() is None:
            bundles = [bundle] * config.group.num_workers
            self.placement_group = placement_group(bundles, strategy="PACK")

    def release(self) -> None:
        """Give the bundles back, which ends the actors in them. Further calls do nothing."""
        reserved, self.placement_group = self.placement_group, None
        if reserved is not None and ray.is_initialized():
            remove_placement_group(reserved)


def scheduled_into(group: PlacementGroup | None, bundle: int = -1) -> dict[str, Any]:
    """Options of an actor in a bundle of the placement group, any or a certain one; its children go there too."""
    if group is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
    )
    return {"scheduling_strategy": strategy}


def check_resources(config: ExecutionConfig, available: Mapping[str, float]) -> None:
    """Raises CapacityError if all workers together need more than `available` (resource → amount)."""
    for name, amount in worker_bundle(config).items():
        needed = amount * config.group.num_workers
        if needed > available.get(name, 0.0):
            raise CapacityError(
                f"{config.group.num_workers} workers need {needed:g} {name}, but Ray has "
                f"{available.get(name, 0.0):g}; lower num_workers or the resources of a worker, or add nodes"
            )


def check_nodes(config: ExecutionConfig, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raises CapacityError if the workers do not fit on the nodes (as `ray.nodes` gives them) even when all of these
    are free: Ray would never place them. With `wait_for_nodes` an autoscaler may add nodes."""
    group = config.group
    if group.wait_for_nodes:
        return
    bundle = worker_bundle(config)
    alive = [node for node in nodes if node["Alive"]]
    fitting = [_workers_that_fit(bundle, node["Resources"]) for node in alive]
    if sum(fitting) >= group.num_workers:
        return
    has = "; ".join(
        f"{node['NodeManagerAddress']} with {listed(node['Resources'], bundle)} has room for {number:g}"
        for node, number in zip(alive, fitting, strict=True)
    )
    raise CapacityError(
        f"{group.num_workers} workers of {listed(bundle, bundle)} each do not fit: {has}; lower num_workers or the "
        "resources of a worker, add nodes, or set group.wait_for_nodes if an autoscaler adds them"
    )


def _workers_that_fit(bundle: Mapping[str, float], resources: Mapping[str, float]) -> float:
    # Ray counts in ten-thousandths; a sum of fractions may miss a whole number by less.
    fits = [math.floor(resources.get(name, 0.0) / amount + 1e-6) for name, amount in bundle.items()]
    return min(fits, default=math.inf)


def listed(amounts: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{amounts.get(name, 0.0):g} {name}" for name in names)


@dataclass(frozen=True, slots=True)
class Allocation:
    options: dict[str, Any]  # Ray's options of all its actors
    bundle: int | None = None  # which of the group's bundles it has; None: it goes anywhere in the cluster
    own_group: PlacementGroup | None = None  # for shards that must be on one node


class BundleAllocator:
    """Hands out the bundles of a group. After a `resize` a worker without one goes anywhere in the cluster."""

    def __init__(self, reserved: PlacementGroup | None, config: ExecutionConfig) -> None:
        """One bundle for each of the workers that the configuration asks for; see `Reservation`."""
        self._reserved = reserved
        self._group = config.group
        self._worker = worker_bundle(config)
        self._free = set(range(config.group.num_workers))

    def allocate(self) -> Allocation:
        """A place for the next worker. Raises CapacityError if this runs in a placement group with too few bundles."""
        sharded = self._group.tensor_parallel_size > 1
        if self._free:
            bundle = min(self._free)
            options = self._one_bundle(bundle) if sharded else scheduled_into(self._reserved)
            self._free.remove(bundle)
            return Allocation(options, bundle)
        if sharded:
            owner = ray.get_runtime_context().get_actor_id()
            own_group = placement_group([self._worker], name=f"{owner}-{uuid.uuid4().hex}")
            return Allocation(scheduled_into(own_group, 0), own_group=own_group)
        nowhere = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]  # it may be None
        return Allocation({"scheduling_strategy": nowhere})

    def release(self, allocation: Allocation) -> None:
        """The worker has ended; the next worker gets its bundle, if it had one. To be called once."""
        if allocation.bundle is not None:
            self._free.add(allocation.bundle)
        if allocation.own_group is not None:
            remove_placement_group(allocation.own_group)

    def _one_bundle(self, bundle: int) -> dict[str, Any]:
        """If only the placement group were named, shards of two workers might share a bundle."""
        group = self._reserved or ray.util.get_current_placement_group()
        if group is None:
            return {}
        number = self._group.num_workers
        # A Serve replica has a bundle of its workers' placement group for itself, the first.
        holding = [index for index, held in enumerate(group.bundle_specs) if self._holds_worker(held)]
        indices = holding[-number:]
        if len(indices) < number:
            raise CapacityError(
                f"{number} workers with {self._group.tensor_parallel_size} shards each need a bundle each of "
                f"{listed(self._worker, self._worker)} in the placement group that they run in, which has "
                f"{len(indices)} such bundles; reserve more, or set tensor_parallel_size to 1"
            )
        return scheduled_into(group, indices[bundle])

    def _holds_worker(self, held: Mapping[str, float]) -> bool:
        return all(held.get(name, 0.0) >= amount for name, amount in self._worker.items())


def remove_own_groups(master: str) -> None:
    """Remove the placement groups that workers of a master (its actor id) have for themselves. A master that is killed
    leaves them behind: Ray would keep them until the driver ends."""
    for held in ray.util.placement_group_table().values():
        if held["name"].startswith(f"{master}-") and held["state"] != "REMOVED":
            with suppress(ValueError):  # the master removed it before it ended
                remove_placement_group(ray.util.get_placement_group(held["name"]))
