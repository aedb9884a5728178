"""A program: groups on `ray.cluster_utils.Cluster` with three nodes of two CPUs; prints one JSON object."""

from __future__ import annotations

import json
import time

from actors.engine import RayEngine
from lopa_ray.errors import CapacityError
from programs.lost_nodes import lose
from programs.spread_group import seen
from support.groups import config
from support.ray_nodes import three_nodes
from support.trials import Oracle


def refusal() -> dict[str, object]:
    """What is said of a group which no node has a place for, and after how long."""
    began = time.monotonic()
    try:
        RayEngine.from_config(config(group={"num_workers": 2, "num_cpus": 3.0}))
    except CapacityError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": time.monotonic() - began}


def main() -> None:
    with three_nodes() as cluster:
        found = {
            "SPREAD": seen({"num_workers": 3, "placement": "SPREAD"}),
            "PACK": seen({"num_workers": 2, "num_cpus": 1.0}),
            "refusal": refusal(),
            "lost": lose(cluster, Oracle(config()), "workers", seed=1),  # the last one: a node is gone then
        }
    print(json.dumps(found))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
