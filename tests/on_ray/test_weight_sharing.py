"""The weights of a group: mapped by all workers on a node, and by those that replace lost ones."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.engine import RayEngine
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.tiny_model import tiny_config


@dataclass(frozen=True)
class WeightsLocation:
    """A runner factory that records, per process, whether the model lies in the object store's memory."""

    folder: Path

    def __call__(self, spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
        runner = build_runner(spec, weights, tp_group)
        addresses = [parameter.data_ptr() for parameter in runner.model.parameters()]
        (self.folder / str(os.getpid())).write_text(str(all(map(_in_object_store, addresses))))
        return runner

    def by_process(self) -> dict[int, str]:
        return {int(path.name): path.read_text() for path in self.folder.iterdir()}


def _in_object_store(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, file = line.split(maxsplit=5)
        first, last = (int(edge, 16) for edge in span.split("-"))
        if first <= address < last:
            return "plasma" in file
    raise AssertionError("memory that is not mapped")


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_workers_map_one_copy_and_so_do_their_replacements(
    tmp_path: Path, reference: ReferenceResults
) -> None:
    location = WeightsLocation(tmp_path)
    with RayEngine.from_config(tiny_config(group={"num_workers": 2}), runner_factory=location) as engine:
        group = GroupUnderTest(engine, reference)
        first = location.by_process()
        assert list(first.values()) == ["True"] * 2
        for process in first:  # the one that has read them, too
            group.run_batch(2, during=lambda process=process: os.kill(process, signal.SIGKILL))
        group.run_until(lambda: engine.status().workers == 2)
    locations = location.by_process()
    assert len(locations) >= 4 and set(locations.values()) == {"True"}
