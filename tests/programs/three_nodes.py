"""A program: groups on `ray.cluster_utils.Cluster` with three nodes of two CPUs; prints one JSON object."""

from __future__ import annotations

import json
import time

from actors.engine import RayEngine
from lopa_ray.errors import CapacityError
from programs.lost_nodes import decode_and_lose_node, worker_nodes
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.ray_nodes import three_node_cluster
from support.tiny_model import tiny_config


def nodes_of_two_workers(reference: ReferenceResults) -> int:
    """On how many nodes a group is that has room on one; every token is compared."""
    with RayEngine.from_config(tiny_config(group={"num_workers": 2, "num_cpus": 1.0})) as engine:
        GroupUnderTest(engine, reference).run_batch(6)
        return len(worker_nodes())


def refusal() -> dict[str, object]:
    """The error of a group that no node has a place for, and after how long it came."""
    began = time.monotonic()
    try:
        RayEngine.from_config(tiny_config(group={"num_workers": 2, "num_cpus": 3.0}))
    except CapacityError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": time.monotonic() - began}


def main() -> None:
    reference = ReferenceResults(tiny_config())
    with three_node_cluster() as cluster:
        record = {
            "nodes_of_two_workers": nodes_of_two_workers(reference),
            "refusal": refusal(),
            # The last one, since a node is gone then.
            "lost": decode_and_lose_node(cluster, reference, "workers", seed=1),
        }
    print(json.dumps(record))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
