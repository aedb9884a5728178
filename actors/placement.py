"""Where the workers of a group go: a bundle each, reserved together, so that a group has all its places or none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lopa_ray.config.config import Config
from lopa_ray.errors import CapacityError
from lopa_ray.execution.device import DEVICES


def worker_bundle(config: Config) -> dict[str, float]:
    """Ray resource → what one worker takes of it, all its shards together."""
    return {
        name: amount * config.group.tensor_parallel_size for name, amount in _actor_bundle(config).items()
    }


def _actor_bundle(config: Config) -> dict[str, float]:
    """The same for one shard; without resources of which it takes nothing."""
    group, resource = config.group, DEVICES[config.model.device].ray_resource
    bundle = {"CPU": group.num_cpus, **group.resources}
    if resource != "CPU":
        bundle[resource] = group.num_accelerators
    return {name: amount for name, amount in bundle.items() if amount}


def actor_options(config: Config) -> dict[str, Any]:
    """What one worker, or a shard of one, asks of Ray. The master owns replacement, so Ray restarts nothing."""
    bundle = _actor_bundle(config)
    options: dict[str, Any] = {"num_cpus": bundle.pop("CPU", 0.0), "max_restarts": 0, "max_task_retries": 0}
    if "GPU" in bundle:
        options["num_gpus"] = bundle.pop("GPU")
    if bundle:
        options["resources"] = bundle
    return options


class Reservation:
    """The places of one group. Inside of somebody else's placement group (a Serve replica's) it is empty:
    workers then go into that group's bundles by themselves."""

    def __init__(self, config: Config) -> None:
        """Asks for the places without waiting for them."""
        bundle = worker_bundle(config)
        self.places: PlacementGroup | None = None
        if bundle and ray.util.get_current_placement_group() is None:
            bundles = [bundle] * config.group.num_workers
            self.places = placement_group(bundles, strategy=config.group.placement)

    def release(self) -> None:
        """Give the places back; ends whoever is in them. Then do nothing."""
        places, self.places = self.places, None
        if places is not None and ray.is_initialized():
            remove_placement_group(places)


def inside(places: PlacementGroup | None, bundle: int = -1) -> dict[str, Any]:
    """Options of an actor that takes one of the places, any or a certain one; its children go there too."""
    if places is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(
        places, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
    )
    return {"scheduling_strategy": strategy}


class BundleAllocator:
    """Which workers of a group have one of its places. Those for whom none is left, after a `resize`, go
    anywhere in the cluster, one by one, and leave nothing behind."""

    def __init__(self, places: PlacementGroup | None, config: Config) -> None:
        """One place for each of the workers that the configuration asks for; see `Reservation`."""
        self._places = places
        self._group = config.group
        self._bundle = worker_bundle(config)
        self._seated: list[Any] = [None] * config.group.num_workers
        self._extra: dict[Any, PlacementGroup] = {}
        """Places of their own, for workers with shards that must be on one node."""
        self._offered: PlacementGroup | None = None

    def next(self) -> dict[str, Any]:
        """Options that send the next worker, with all its shards, where it belongs; `taken` says who it is."""
        together = self._group.tensor_parallel_size > 1
        if None in self._seated:
            return self._together(self._seated.index(None)) if together else inside(self._places)
        if together:
            self._offered = placement_group([self._bundle])
            return inside(self._offered, 0)
        if self._group.placement == "SPREAD":
            return {"scheduling_strategy": "SPREAD"}
        nowhere = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]  # it may be None
        return {"scheduling_strategy": nowhere}

    def _together(self, seat: int) -> dict[str, Any]:
        """In a bundle of its own: if only the placement group were named, shards of two workers might share one.

        Raises CapacityError if somebody else's placement group has too few bundles that hold a whole worker.
        """
        places = self._places or ray.util.get_current_placement_group()
        if places is None:
            return {}
        number = len(self._seated)
        # A Serve replica has a bundle of its workers' placement group for itself, the first.
        bundles = [index for index, held in enumerate(places.bundle_specs) if self._fits(held)][-number:]
        if len(bundles) < number:
            raise CapacityError(
                f"{number} workers with {self._group.tensor_parallel_size} shards each need a bundle each of "
                f"{_listed(self._bundle, self._bundle)} in the placement group that they run in, which has "
                f"{len(bundles)} such bundles; reserve more, or set tensor_parallel_size to 1"
            )
        return inside(places, bundles[seat])

    def _fits(self, held: Mapping[str, float]) -> bool:
        return all(held.get(name, 0.0) >= amount for name, amount in self._bundle.items())

    def taken(self, worker: Any) -> None:
        """A worker was sent there."""
        if None in self._seated:
            self._seated[self._seated.index(None)] = worker
        elif self._offered is not None:
            self._extra[worker], self._offered = self._offered, None

    def left(self, worker: Any) -> None:
        """A worker has ended; the next one gets its place, if it had one."""
        if worker in self._seated:
            self._seated[self._seated.index(worker)] = None
        elif worker in self._extra:
            remove_placement_group(self._extra.pop(worker))


def check_room(config: Config, room: Mapping[str, float]) -> None:
    """Raises CapacityError if the workers need more than `room` (resource → amount) all together."""
    for name, each in worker_bundle(config).items():
        needed = each * config.group.num_workers
        if needed > room.get(name, 0.0):
            raise CapacityError(
                f"{config.group.num_workers} workers need {needed:g} {name}, but Ray has "
                f"{room.get(name, 0.0):g}; lower num_workers or what each worker takes, or add nodes"
            )


def check_nodes(config: Config, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raises CapacityError if the workers do not fit on the nodes (as `ray.nodes` gives them), even if all of these
    were free: it would never be placed. With `wait_for_nodes` there may be more nodes to come."""
    group = config.group
    if group.wait_for_nodes:
        return
    bundle = worker_bundle(config)
    alive = [node for node in nodes if node["Alive"]]
    places = [_places(bundle, node["Resources"]) for node in alive]
    if sum(places) >= group.num_workers:
        return
    has = "; ".join(
        f"{node['NodeManagerAddress']} with {_listed(node['Resources'], bundle)} has place for {fitting:g}"
        for node, fitting in zip(alive, places, strict=True)
    )
    raise CapacityError(
        f"{group.num_workers} workers of {_listed(bundle, bundle)} each do not fit: {has}; lower num_workers or what "
        "each worker takes, add nodes, or set group.wait_for_nodes if an autoscaler will"
    )


def _places(bundle: Mapping[str, float], resources: Mapping[str, float]) -> float:
    # Ray counts in ten-thousandths; a sum of fractions may miss a whole number by less.
    fits = [math.floor(resources.get(name, 0.0) / amount + 1e-6) for name, amount in bundle.items()]
    return min(fits, default=math.inf)


def _listed(amounts: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{amounts.get(name, 0.0):g} {name}" for name in names)
