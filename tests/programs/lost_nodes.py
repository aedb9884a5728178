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
from support.groups import config
from support.ray_nodes import TEST_NODE, three_nodes
from support.trials import Oracle, Trial, actor_pids, end

SPREAD = config(group={"num_workers": 3, "placement": "SPREAD"})
"""One worker on each node. Ray puts the master anywhere."""


def lose(cluster: Cluster, oracle: Oracle, what: str, *, seed: int, again: bool = False) -> dict[str, Any]:
    """Remove a node that has a worker and, as `what` says, the master or not; every token is compared.

    With `again` another node takes its place, and the group must have all of its workers then.
    """
    while True:
        with RayEngine.from_config(SPREAD) as engine:
            (master,) = actor_pids("Master")
            homes = {raylet_of(node): node for node in cluster.worker_nodes}  # the head stays: we are there
            home = homes.pop(psutil.Process(master).ppid(), None)
            if what == "master" and home is None:
                continue  # Ray put it on the head
            node = home if what == "master" else next(iter(homes.values()))
            trial = Trial(engine, oracle, random.Random(seed))
            moments: list[float] = []

            def remove(node: Any = node, moments: list[float] = moments) -> None:
                moments.append(time.time())
                # All at once, as with the power: Ray alone would leave the worker a second to go on in.
                for process in psutil.Process(raylet_of(node)).children(recursive=True):
                    end(process.pid, signal.SIGKILL)
                cluster.remove_node(node, allow_graceful=False)

            trial.batch(6, remove, after=trial.draw.randrange(5, 60))
            (moment,) = moments
            left = engine.status().workers
            if again:
                cluster.add_node(**TEST_NODE)
                trial.until_there_are(3)
            # Steps that were on their way still arrive: the pause comes after them.
            held_up = max((then - now for now, then in trial.pauses if then > moment), default=0.0)
            return {"requests": trial.requests, "workers left": left, "held up": held_up}


def raylet_of(node: Any) -> int:
    """The process that all workers on the node are children of."""
    return int(node.all_processes["raylet"][0].process.pid)


def main() -> None:
    what, rounds = sys.argv[1], int(sys.argv[2])
    oracle = Oracle(config())
    with three_nodes() as cluster:
        losses = [lose(cluster, oracle, what, seed=seed, again=True) for seed in range(rounds)]
    print(json.dumps(losses))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
