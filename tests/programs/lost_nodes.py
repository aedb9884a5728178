"""A program: a group loses one of its three nodes while it decodes, with all that runs there, again and again.

python lost_nodes.py workers|master ROUNDS        prints one JSON object
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from actors.engine import RayEngine
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids, send_signal
from support.ray_nodes import NODE_ARGS, three_node_cluster
from support.tiny_model import tiny_config

SPREAD_CONFIG = tiny_config(group={"num_workers": 3, "resources": {"node": 1.0}})
"""One worker on each node. Ray puts the master anywhere."""


def decode_and_lose_node(
    cluster: Cluster, reference: ReferenceResults, actor: str, *, seed: int, replace: bool = False
) -> dict[str, Any]:
    """Remove a node that has a worker and, if `actor` is "master", the master too; every token is compared.

    With `replace` another node takes its place, and the group must have all of its workers then.
    """
    while True:
        with RayEngine.from_config(SPREAD_CONFIG) as engine:
            (master,) = actor_pids("Master")
            nodes_before = len(worker_nodes())
            # Not the head: this process is there.
            nodes = {raylet_pid(node): node for node in cluster.worker_nodes}
            master_node = nodes.pop(psutil.Process(master).ppid(), None)
            if actor == "master" and master_node is None:
                continue  # Ray put it on the head
            node = master_node if actor == "master" else next(iter(nodes.values()))
            group = GroupUnderTest(engine, reference, random.Random(seed))
            moments: list[float] = []

            def remove(node: Any = node, moments: list[float] = moments) -> None:
                moments.append(time.time())
                # All at once, as with the power: Ray alone would leave the worker a second to go on in.
                for process in psutil.Process(raylet_pid(node)).children(recursive=True):
                    send_signal(process.pid, signal.SIGKILL)
                cluster.remove_node(node, allow_graceful=False)

            group.run_batch(6, remove, after=group.rng.randrange(5, 60))
            (moment,) = moments
            workers_left = engine.status().workers
            if replace:
                cluster.add_node(**NODE_ARGS)
                group.wait_for_workers(3)
            # Steps that were on their way still arrive: the pause comes after them.
            pause_s = max((end - start for start, end in group.step_gaps if end > moment), default=0.0)
            return {
                "nodes": nodes_before,
                "requests": group.requests,
                "workers_left": workers_left,
                "pause_s": pause_s,
            }


def worker_nodes() -> set[int]:
    """The raylets of the nodes on which workers are."""
    return {psutil.Process(pid).ppid() for pid in actor_pids("BranchWorker")}


def raylet_pid(node: Any) -> int:
    """The process that all workers on the node are children of."""
    return int(node.all_processes["raylet"][0].process.pid)


def main() -> None:
    actor, rounds = sys.argv[1], int(sys.argv[2])
    reference = ReferenceResults(tiny_config())
    with three_node_cluster() as cluster:
        losses = [
            decode_and_lose_node(cluster, reference, actor, seed=seed, replace=True) for seed in range(rounds)
        ]
    print(json.dumps(losses))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
