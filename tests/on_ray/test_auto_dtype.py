"""`model.dtype` auto: measured once, by the first worker of an engine's first group."""

from __future__ import annotations

import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine import RayEngine
from lopa_ray.execution import dtype_trial
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids, send_signal
from support.tiny_model import tiny_config


@dataclass(frozen=True)
class ContradictoryMeasurements:
    """A runner factory in whose processes float32 is the faster one the first time, and bfloat16 after that.
    It records each measurement, and what models are loaded in."""

    folder: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self.folder,)

    def __call__(self, spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
        runner = build_runner(spec, weights, tp_group)
        dtype = str(runner.model.embed.weight.dtype)
        (self.folder / f"loaded.{os.getpid()}").write_text(dtype)
        return runner

    def measure(self, where: torch.device, config: ModelConfig) -> dict[torch.dtype, float]:
        bfloat16 = 1.0 if self.measured else 3.0
        (self.folder / f"measured.{uuid.uuid4().hex}").touch()
        return {torch.float32: 2.0, torch.bfloat16: bfloat16}

    @property
    def measured(self) -> int:
        return len(list(self.folder.glob("measured.*")))

    @property
    def loaded(self) -> list[str]:
        return [path.read_text() for path in self.folder.glob("loaded.*")]


def _in_this_process(folder: Path) -> ContradictoryMeasurements:
    measurements = ContradictoryMeasurements(folder)
    dtype_trial.product_seconds = measurements.measure
    return measurements


def kill_first(class_name: str) -> None:
    send_signal(actor_pids(class_name)[0], signal.SIGKILL)


@pytest.mark.long
def test_workers_those_that_replace_them_and_the_next_group_have_the_same(
    tmp_path: Path, reference: ReferenceResults
) -> None:
    factory = ContradictoryMeasurements(tmp_path)
    config = tiny_config(model={"dtype": "auto"}, group={"num_workers": 2})
    with RayEngine.from_config(config, runner_factory=factory) as engine:
        assert engine.config.model.dtype == "float32"
        assert factory.loaded == ["torch.float32"] * 2
        group = GroupUnderTest(engine, reference)
        kill_first("BranchWorker")
        group.run_until(lambda: len(factory.loaded) == 3 and engine.status().workers == 2)
        group.run_batch(3, during=lambda: kill_first("Master"))
        assert factory.loaded == ["torch.float32"] * 5
    assert factory.measured == 1
