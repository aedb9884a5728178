"""BundleAllocator: which worker of a group goes into which bundle."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.placement import listed, scheduled_into, worker_bundle
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import CapacityError


@dataclass(frozen=True, slots=True)
class Allocation:
    """The place of one worker."""

    options: dict[str, Any]
    """Of all its actors."""
    bundle: int | None = None
    """Which of the group's bundles it has; None: it goes anywhere in the cluster."""
    own_group: PlacementGroup | None = None
    """A placement group of its own, for shards that must be on one node."""


class BundleAllocator:
    """Hands out the bundles of a group. A worker for which none is left, after a `resize`, goes anywhere in the
    cluster."""

    def __init__(self, reserved: PlacementGroup | None, config: ExecutionConfig) -> None:
        """One bundle for each of the workers that the configuration asks for; see `Reservation`."""
        self._reserved = reserved
        self._group = config.group
        self._worker = worker_bundle(config)
        self._free = set(range(config.group.num_workers))

    def allocate(self) -> Allocation:
        """A place for the next worker, with all its shards.

        Raises CapacityError if another placement group that this runs in has too few bundles that hold a worker.
        """
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
        if self._group.placement == "SPREAD":
            return Allocation({"scheduling_strategy": "SPREAD"})
        nowhere = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]  # it may be None
        return Allocation({"scheduling_strategy": nowhere})

    def release(self, allocation: Allocation) -> None:
        """The worker has ended; the next one gets its bundle, if it had one. To be called once."""
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
        indices = [index for index, held in enumerate(group.bundle_specs) if self._holds_worker(held)][
            -number:
        ]
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
