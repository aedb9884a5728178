"""Steps in captured graphs on a fake CUDA device: what a capture may do, and what is left to launch around a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from lopa_lab.bench.step_plans import step_of
from lopa_ray.execution import flash_attention, step_graphs
from lopa_ray.execution.flash_attention import FlashAttention, LaneTable
from lopa_ray.execution.graph_capture import CudaCapture
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.config import NativeConfig
from lopa_ray.protocol.plan import Plan
from support.checked_graph import CheckedGraph, storage_of
from support.device_log import DeviceLog
from support.fake_cuda import AMPERE, CUDA, fake_cuda
from support.fake_steps import (
    FP8_SCALES,
    StepSetup,
    config_of,
    execute,
    fp8_config_of,
    in_segments,
    two_plans,
)
from support.recorded_graph import cuda_graphs_as

ROWS = 32
"""Of the largest bucket, so that captures take less time."""

OUTSIDE = {
    "lopa_ray.commit_rows.default": 1,
    "aten.index_select.default": 3,
    "aten.index_copy_.default": 1,
}
"""The kernels of a step that commits and stages, but for those of its graph."""


@pytest.fixture(autouse=True)
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "MAX_GRAPH_ROWS", ROWS)


@contextmanager
def captured(setup: StepSetup) -> Iterator[BranchRunner]:
    """A runner whose steps are captured, on a fake CUDA device."""
    CheckedGraph.captured, CheckedGraph.replays = [], 0
    with fake_cuda(setup.major), cuda_graphs_as(CheckedGraph):
        runner = setup.runner()
        with DeviceLog():
            runner.capture_graphs(CudaCapture(CUDA))
        yield runner


def steps(
    runner: BranchRunner, requests: int = 2, change: Callable[[Plan], Plan] = lambda plan: plan
) -> tuple[DeviceLog, int]:
    """The log of a step of 32 rows that commits and stages, and the replays that it took."""
    runner.reconcile({}, ())
    first, second = two_plans(runner.vocabulary.mask_token_id, 2, 16 // requests)
    execute(runner, step_of(runner, [change(first)] * requests))
    before = CheckedGraph.replays
    log = execute(runner, step_of(runner, [change(second)] * requests))
    return log, CheckedGraph.replays - before


CONFIGS: dict[str, NativeConfig] = {
    "dream": config_of("dream"),
    "nemotron": config_of("nemotron"),
    "sdar_moe": config_of("sdar_moe"),
    "llada2 w8a8": config_of("llada2", "w8a8"),
    "sdar fp8": fp8_config_of("sdar", FP8_SCALES[1]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_captured_step_is_one_replay(name: str) -> None:
    """And what commits, staging and the two copies take. The graph uses no memory but what the runner keeps."""
    with captured(StepSetup(CONFIGS[name])) as runner:
        log, replays = steps(runner)
        assert replays == 1 and log.launches == OUTSIDE
        assert log.faults == []
        kept = [*runner.model.parameters(), *runner.model.buffers(), *kept_tensors(runner)]
        allowed = {storage_of(tensor) for tensor in kept}
        assert len(CheckedGraph.captured) == ROWS // 16
        for graph in CheckedGraph.captured:
            assert [line for storage, line in graph.outside.items() if storage not in allowed] == []


def kept_tensors(runner: BranchRunner) -> list[Tensor]:
    """What a runner keeps beside its model: the cache, the inputs and results of graphs, and the banned tokens."""
    parts: list[Any] = [runner.cache, runner._lm_head, runner._graphs, runner._graphs._buffer]
    return [value for part in parts for value in vars(part).values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    with captured(StepSetup(config_of("dream"), dtype)) as runner:
        log, replays = steps(runner, 1, in_segments)
    assert (replays, log.launches, log.faults) == (1, OUTSIDE, [])


def test_experts_on_a_gpu_without_a_grouped_product() -> None:
    with captured(StepSetup(config_of("sdar_moe"), major=AMPERE)) as runner:
        assert steps(runner)[1] == 1


def test_larger_steps_and_others_launch_what_they_launch_without_graphs() -> None:
    without = StepSetup(config_of("dream")).log(requests=3, branches=4, rows=32)
    with captured(StepSetup(config_of("dream"))) as runner:
        first, second = two_plans(runner.vocabulary.mask_token_id, 4, 32)
        execute(runner, step_of(runner, [first] * 3))
        log = execute(runner, step_of(runner, [second] * 3))
    assert CheckedGraph.replays == 0
    assert (log.launches, log.faults) == (without.launches, [])


def flash(
    q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool
) -> tuple[Tensor, Tensor]:
    """With the shapes of the package's function."""
    assert lanes.longest in (16, 32)
    return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


def test_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes may have as many rows as the bucket. Windows in segments are no steps of its graphs."""
    monkeypatch.setitem(flash_attention.VERSIONS, 3, flash)
    with captured(StepSetup(config_of("dream"), attention=FlashAttention(3))) as runner:
        log, replays = steps(runner)
        assert (replays, log.launches, log.faults) == (1, OUTSIDE, [])
        log, replays = steps(runner, 1, in_segments)
        assert replays == 0 and log.launches["lopa_ray.slot_attention.default"] > 0
