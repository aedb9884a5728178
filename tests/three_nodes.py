"""A program: groups on `ray.cluster_utils.Cluster` with three nodes of two CPUs; prints one JSON object."""

from __future__ import annotations

import json
import time

import ray
from groups import config
from ray.cluster_utils import Cluster
from spread_group import seen

from actors.engine import RayEngine
from lopa_ray.errors import CapacityError


def refusal() -> dict[str, object]:
    """What is said of a group which no node has a place for, and after how long."""
    began = time.monotonic()
    try:
        RayEngine.from_config(config(group={"num_workers": 2, "num_cpus": 3.0}))
    except CapacityError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": time.monotonic() - began}


def main() -> None:
    node = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(**node)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        found = {
            "SPREAD": seen({"num_workers": 3, "placement": "SPREAD"}),
            "PACK": seen({"num_workers": 2, "num_cpus": 1.0}),
            "refusal": refusal(),
        }
        ray.shutdown()
        print(json.dumps(found))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
