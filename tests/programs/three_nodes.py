"""A program: groups on `ray.cluster_utils.Cluster` with three nodes of two CPUs; prints one JSON object."""

from __future__ import annotations

import json
import time

from programs.spread_group import decode_and_compare

from actors.engine import RayEngine
from lopa_ray.errors import CapacityError
from programs.lost_nodes import decode_and_lose_node
from support.group_under_test import ReferenceResults
from support.ray_nodes import three_node_cluster
from support.tiny_model import tiny_config


def refusal() -> dict[str, object]:
    """The error of a group that no node has a place for, and after how long it came."""
    began = time.monotonic()
    try:
        RayEngine.from_config(tiny_config(group={"num_workers": 2, "num_cpus": 3.0}))
    except CapacityError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": time.monotonic() - began}


def main() -> None:
    with three_node_cluster() as cluster:
        record = {
            "PACK": decode_and_compare({"num_workers": 2, "num_cpus": 1.0}),
            "refusal": refusal(),
            # The last one, since a node is gone then.
            "lost": decode_and_lose_node(cluster, ReferenceResults(tiny_config()), "workers", seed=1),
        }
    print(json.dumps(record))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
