"""A program: a group whose model comes from the Hub, on two nodes that each have a cache of their own.

Arguments: a folder for the caches. Prints one JSON object. HF_ENDPOINT names a stand-in for the Hub; this program
publishes nothing, and waits for a line of input before it loses a worker.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import ray
from ray.cluster_utils import Cluster

from actors.engine import RayEngine
from lopa_ray.engine.config import Config
from support.group_under_test import wait_for_status
from support.processes import actor_pids
from support.ray_nodes import NODE_ARGS
from support.tiny_model import SETTINGS

PROMPTS = [[3, 5, 7], [11, 2]]


def decode(engine: RayEngine) -> list[list[int]]:
    return [result.token_ids for result in engine.generate(PROMPTS, SETTINGS["two_phase"])]


def main() -> None:
    homes = [{"env_vars": {"HF_HOME": f"{sys.argv[1]}/{name}"}} for name in ("head", "other")]
    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE_ARGS, **homes[0], "include_dashboard": False}
    )
    cluster.add_node(**NODE_ARGS, **homes[1])
    config = Config.parse(
        {
            "model": {"path": "org/model", "lora": "org/adapter@v1", "max_model_len": 256},
            "group": {"num_workers": 4, "num_cpus": 1.0},
        }
    )
    try:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        with RayEngine.from_config(config) as engine:
            first = decode(engine)
            print("decoded", flush=True)
            sys.stdin.readline()
            lost = actor_pids("BranchWorker")
            for pid in lost[:2]:
                os.kill(pid, signal.SIGKILL)
            decode(engine)
            wait_for_status(engine, lambda status: status.workers == 4, "replacements of the lost workers")
            again = decode(engine)
            record = {
                "path": engine.config.model.path,
                "lora": engine.config.model.lora,
                "tokens": [first, again],
                "replaced": len(set(actor_pids("BranchWorker")) - set(lost)),
                "checksums_agree": len({str(checksum) for checksum in engine.checksums()}) == 1,
            }
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(record))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
