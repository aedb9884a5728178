"""A program: a worker takes so much memory that Ray's memory monitor ends it, and others with it, to spare the node.
Prints one JSON object.

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

from actors.engine import RayEngine
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.slots import PayloadTransfer
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.plan import StepPlan
from support.group_under_test import NUM_WORKERS, GroupUnderTest, ReferenceResults, refuse_other_groups
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

HEADROOM_BYTES = 3 * 2**29
"""Free memory before the monitor steps in, counted from the start."""

CHUNK_BYTES = 2**27


class MemoryHogFactory:
    """Makes runners that take all the memory they get once a file exists; the first one to see it removes it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
        return MemoryHogRunner(build_runner(spec, weights, tp_group), self.file)


class MemoryHogRunner:
    def __init__(self, runner: BranchRunner, file: Path) -> None:
        self._runner, self._file = runner, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> LaunchedStep:
        try:
            self._file.rename(self._file.with_suffix(".triggered"))
        except FileNotFoundError:
            return self._runner.launch(plan, transfer)
        taken = [b"x" * CHUNK_BYTES for _ in range(2 * HEADROOM_BYTES // CHUNK_BYTES)]
        time.sleep(60)
        raise AssertionError(f"still here with {len(taken) * CHUNK_BYTES} bytes")


def main() -> None:
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + HEADROOM_BYTES) / memory.total
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=150 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 100},
    )
    pauses = []
    with tempfile.TemporaryDirectory() as folder:
        hog, config = MemoryHogFactory(Path(folder) / "hog"), tiny_config(group={"num_workers": NUM_WORKERS})
        with RayEngine.from_config(config, runner_factory=hog) as engine:
            group = GroupUnderTest(engine, ReferenceResults(tiny_config()))
            for _ in range(int(sys.argv[1])):
                moments: list[float] = []

                def trigger(moments: list[float] = moments) -> None:
                    moments.append(time.time())
                    hog.file.touch()

                group.run_batch(6, trigger)
                assert not hog.file.exists()
                group.wait_for_workers(NUM_WORKERS)
                pauses.append(group.pause_s(moments[0]))
        alone = tiny_config(group={"num_workers": 1})
        with RayEngine.from_config(alone, runner_factory=hog) as engine:
            refuse_other_groups(engine)
            hog.file.touch()
            session = engine.create_session(PROMPTS[0], SETTINGS["two_phase"])
            *_, failure = engine.events([session])
            assert isinstance(failure, RequestFailure)
    ray.shutdown()
    print(json.dumps({"requests": group.requests, "pauses_s": pauses, "reason": str(failure.error)}))


if __name__ == "__main__":
    main()
