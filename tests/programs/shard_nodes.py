"""A program: on which of three nodes the shards of a group's workers are; prints one JSON list of lists."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from actors.engine import RayEngine
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.weights import Weights
from support.ray_nodes import three_node_cluster
from support.tiny_model import PROMPTS, SETTINGS, tiny_config


@dataclass(frozen=True)
class NodeRecorder:
    """A runner factory that records, per process, which worker it is a shard of and on which node."""

    folder: Path

    def __call__(self, spec: ModelSpec, weights: Weights | None, tp_group: Any) -> Any:
        runner = build_runner(spec, weights, tp_group)
        reconcile = runner.reconcile

        def settle_and_record(*arguments: Any) -> Any:
            worker = tp_group._rendezvous.purpose
            (self.folder / str(os.getpid())).write_text(f"{worker} {ray.get_runtime_context().get_node_id()}")
            return reconcile(*arguments)

        runner.reconcile = settle_and_record
        return runner

    def nodes(self) -> dict[str, list[str]]:
        """Worker → the node of each of its shards."""
        nodes_of: dict[str, list[str]] = {}
        for path in self.folder.iterdir():
            worker, node = path.read_text().split()
            nodes_of.setdefault(worker, []).append(node)
        return nodes_of


def nodes_of_shards() -> list[list[str]]:
    """By worker: two for which places are reserved, and one that came later."""
    group = {"num_workers": 2, "tensor_parallel_size": 2, "num_cpus": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        recorder = NodeRecorder(Path(folder))
        with RayEngine.from_config(tiny_config(group=group), runner_factory=recorder) as engine:
            engine.resize(3)
            while engine.status().workers < 3:
                time.sleep(0.1)
            engine.generate(PROMPTS[0], SETTINGS["d2f"])  # with all three
            return list(recorder.nodes().values())


def main() -> None:
    with three_node_cluster():
        nodes_of = nodes_of_shards()
    print(json.dumps(nodes_of))  # now that Ray has nothing more to print


if __name__ == "__main__":
    main()
