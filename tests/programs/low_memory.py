"""A program: a worker takes so much memory that Ray's memory monitor ends it, and whom else it chooses, to spare the
node. Prints one JSON object.

python low_memory.py ROUNDS
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from actors.branch_worker import default_runner
from actors.engine import RayEngine
from lopa_ray.config.config import Config
from lopa_ray.execution.runner import BranchRunner, BroadcastPayload
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import StepPlan, StepReport
from support.groups import config
from support.trials import WORKERS, Oracle, Trial

ROOM = 3 * 2**29
"""Bytes that there are before the monitor steps in, counted from the start."""

CHUNK = 2**27


class Hog:
    """Makes runners that take all the memory they get while a file lies there; the first one takes the file along."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, config: Config, weights: Weights | None, parallel: TensorParallelGroup) -> Any:
        return HungryRunner(default_runner(config, weights, parallel), self.file)


class HungryRunner:
    def __init__(self, runner: BranchRunner, file: Path) -> None:
        self._runner, self._file = runner, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        try:
            self._file.rename(self._file.with_suffix(".met"))
        except FileNotFoundError:
            return self._runner.execute(plan, broadcast)
        taken = [b"x" * CHUNK for _ in range(2 * ROOM // CHUNK)]
        time.sleep(60)
        raise AssertionError(f"still here with {len(taken) * CHUNK} bytes")


def main() -> None:
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ROOM) / memory.total
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=150 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 100},
    )
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        hog, settings = Hog(Path(folder) / "eat"), config(group={"num_workers": WORKERS})
        with RayEngine.from_config(settings, runner_factory=hog) as engine:
            trial = Trial(engine, Oracle(config()))
            for _ in range(int(sys.argv[1])):
                moments: list[float] = []

                def happens(moments: list[float] = moments) -> None:
                    moments.append(time.time())
                    hog.file.touch()

                trial.batch(6, happens)
                assert not hog.file.exists()
                trial.until_there_are(WORKERS)
                rounds.append(trial.held_up(moments[0]))
    ray.shutdown()
    print(json.dumps({"requests": trial.requests, "held up": rounds}))


if __name__ == "__main__":
    main()
