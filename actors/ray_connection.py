"""The connection to Ray that all engines of one driver share."""

from __future__ import annotations

import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import ray

from actors.node_weights import STORE_SHARE
from actors.placement import check_nodes, check_room
from lopa_ray.config.config import Config
from lopa_ray.errors import ClusterError
from lopa_ray.execution.model_loader import model_weight_bytes

LOCAL_STORE_BYTES = 200 * 2**20
"""Object store of a Ray that is started just for engines: steps are small, and a collective goes past it."""


class Connection:
    """One engine's use of Ray. A Ray that was started for engines ends with the last of them."""

    _users = 0
    """Engines on the local Ray that this process started."""

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connect unless that is done already.

        `address` (or RAY_ADDRESS) names a cluster; without either a local Ray is started, with at
        least as many logical CPUs as the group may need. Raises ClusterError if there is no such
        cluster, and CapacityError if it cannot hold the group.
        """
        if not ray.is_initialized():
            Connection._users = 0
            _initialise(config, address or os.environ.get("RAY_ADDRESS") or "local")
            self._owned = (address is None and "RAY_ADDRESS" not in os.environ) or address == "local"
        else:
            self._owned = Connection._users > 0
        Connection._users += self._owned
        try:
            # Nothing will make room on a Ray of our own; a cluster may free what it has.
            if self._owned:
                check_room(config, ray.available_resources())
            else:
                check_nodes(config, ray.nodes())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connection up. Further calls do nothing."""
        owned, self._owned = self._owned, False
        Connection._users -= owned
        if owned and not Connection._users and ray.is_initialized():
            ray.shutdown()


def _room_for_weights(config: Config) -> int:
    """Bytes for a copy that the workers share; the system hands them out as they are used. 0 where they do not fit."""
    wanted = int(model_weight_bytes(config) / STORE_SHARE)
    shared_memory = Path("/dev/shm")
    fits = shared_memory.is_dir() and wanted + LOCAL_STORE_BYTES < shutil.disk_usage(shared_memory).free
    return wanted if fits and config.group.most_actors > 1 else 0


def _initialise(config: Config, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        group = config.group
        options |= {
            "num_cpus": max(os.cpu_count() or 1, math.ceil(group.most_actors * group.num_cpus)),
            "object_store_memory": LOCAL_STORE_BYTES + _room_for_weights(config),
            "include_dashboard": False,
        }
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"cannot connect to Ray at {address!r} ({error}); start it, correct RAY_ADDRESS, or unset it "
            "for a Ray of this process"
        ) from error
