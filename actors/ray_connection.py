"""The connection to Ray that all engines of one driver share."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ray

from actors.node_weights import STORE_SHARE
from actors.placement import check_nodes, check_resources
from lopa_ray.config.config import Config
from lopa_ray.errors import ClusterError
from lopa_ray.execution.model_loader import model_weight_bytes, slots_bytes

LOCAL_STORE_BYTES = 200 * 2**20
"""Object store of a Ray that is started just for engines: steps are small, and a collective goes past it."""


LOCAL_RAY = "local"
"""The address of a Ray that is started on this machine, and ends with the process that started it."""


class RayConnection:
    """One engine's use of Ray. A Ray that was started for engines ends with the last of them."""

    _owners: ClassVar[set[RayConnection]] = set()
    """Those on the local Ray that this process started, if it was not shut down since."""

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connect unless that is done already.

        `address` (or RAY_ADDRESS) names a cluster; without either a local Ray is started, with at
        least as many logical CPUs as the group may need. Raises ClusterError if there is no such
        cluster, and CapacityError if it cannot hold the group.
        """
        if not ray.is_initialized():
            RayConnection._owners.clear()
            address = address or ray_address()
            connect_to_ray(
                address,
                num_cpus=math.ceil(config.group.max_actors * config.group.num_cpus),
                object_store_memory=LOCAL_STORE_BYTES + _bytes_to_share(config),
            )
            owned = address == LOCAL_RAY
        else:
            owned = bool(RayConnection._owners)
        if owned:
            RayConnection._owners.add(self)
        self._session = _ray_session()
        try:
            # Nothing will make room on a Ray of our own; a cluster may free what it has.
            if owned:
                check_resources(config, ray.available_resources())
            else:
                check_nodes(config, ray.nodes())
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Ray was not shut down since, though it may run anew."""
        return ray.is_initialized() and _ray_session() == self._session

    def close(self) -> None:
        """Give the connection up. Further calls do nothing."""
        if self not in RayConnection._owners:
            return
        RayConnection._owners.remove(self)
        if not RayConnection._owners and ray.is_initialized():
            ray.shutdown()


def _ray_session() -> tuple[str, str]:
    """Node and job of this driver: at least one of them is another one after `ray.shutdown` and `ray.init`."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def _bytes_to_share(config: Config) -> int:
    """Bytes for the weights that the workers share, and for the slots that a new worker takes over. The system hands
    them out as they are used. Where both do not fit: for the slots; where these do not, 0."""
    shared_memory = Path("/dev/shm")
    if config.group.max_actors == 1 or not shared_memory.is_dir():
        return 0
    free = shutil.disk_usage(shared_memory).free - LOCAL_STORE_BYTES
    slots = slots_bytes(config)
    for wanted in (int((model_weight_bytes(config) + slots) / STORE_SHARE), slots):
        if wanted < free:
            return wanted
    return 0


def ray_address() -> str:
    """RAY_ADDRESS, or without it `LOCAL_RAY`."""
    return os.environ.get("RAY_ADDRESS") or LOCAL_RAY


def connect_to_ray(
    address: str,
    *,
    num_cpus: int,
    object_store_memory: int = LOCAL_STORE_BYTES,
    env_vars: Mapping[str, str] | None = None,
) -> None:
    """Connect to the Ray at `address`, or start one on this machine if that is `LOCAL_RAY`.

    `num_cpus` and `object_store_memory` (bytes) are what a local one has at least; `env_vars` are seen by all
    processes that it starts. Raises ClusterError.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL_RAY:
        # Processes of a local Ray inherit it.
        os.environ.update(env_vars or {})
        options |= {
            "num_cpus": max(os.cpu_count() or 1, num_cpus),
            "object_store_memory": object_store_memory,
            "include_dashboard": False,
        }
    elif env_vars:
        options["runtime_env"] = {"env_vars": dict(env_vars)}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"cannot connect to Ray at {address!r} ({error}); start it, correct RAY_ADDRESS, or unset it "
            "for a Ray of this process"
        ) from error
