"""The host's part of Triton kernels: the variants that are compiled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

from lopa_lab.bench.launch_counter import META
from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution import packing
from lopa_ray.execution.model_loader import warm_up
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_columns import StepColumns, copy_to_device
from lopa_ray.kernels import fp8
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.protocol.sampling_params import SamplingParams
from support.deviceless_triton import Variants, deviceless_triton, recorded_variants
from support.empty_models import empty_model
from support.fake_steps import (
    CAPACITY,
    FP8_SCALES,
    PREFIX,
    SLOTS,
    STAGED,
    FakeShards,
    config_of,
    fp8_config_of,
    in_segments,
    runner_of,
    two_plans,
)
from support.settings_strategies import SAMPLING_VALUES

# Kernels write nothing, so reports have whatever was in memory.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning")

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(no_eos_before=CAPACITY, stop_token_ids=(3,)),
    SamplingParams(no_eos_before=CAPACITY, stop_token_ids=(3, 4, 5)),
    SamplingParams(ranking="neg_entropy"),
    SamplingParams(precision="float16"),
    SamplingParams(**SAMPLING_VALUES),
)


def check_variants(
    variants: Variants, config: NativeConfig, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> Counter[str]:
    """Any steps need no variant that the warm-up has not compiled; returns these. On the CPU, where addresses are
    real."""
    runner = runner_of(empty_model(config, torch.bfloat16, torch.device("cpu"), tp_group))
    warm_up(runner)
    compiled = variants.by_kernel
    run_any_steps(runner)
    run_commits_of_two_steps(runner)
    assert variants.by_kernel - compiled == {}
    return compiled


def columns_of_one_copy(arrays: StepColumns[np.ndarray], device: torch.device) -> StepColumns[Tensor]:
    """The columns of a step on the CPU, at the distances in memory that one copy to an accelerator gives them."""
    there = copy_to_device(arrays, META)
    buffer = torch.empty(max(x.untyped_storage().nbytes() for x in _fields(there)), dtype=torch.uint8)
    columns = []
    for array, x in zip(_fields(arrays), _fields(there), strict=True):
        begin = x.storage_offset() * x.itemsize
        column = buffer[begin : begin + x.nbytes].view(x.dtype).view(x.shape)
        columns.append(column.copy_(torch.from_numpy(array)))
    return StepColumns(*columns)


def _fields(columns: StepColumns[Any]) -> list[Any]:
    return [getattr(columns, name) for name in StepColumns.__slots__]


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[Variants]:
    monkeypatch.setattr(packing, "copy_to_device", columns_of_one_copy)
    with deviceless_triton(), recorded_variants() as recorded:
        yield recorded


def run_two_steps(
    runner: BranchRunner, requests: int, branches: int, rows: int, staged: int, sampling: SamplingParams
) -> None:
    """A step that stages, in other slots than steps before it, and one that commits."""
    mask = runner.vocabulary.mask_token_id
    slots = random.Random(requests + branches + rows).sample(range(SLOTS), requests)
    runner.reconcile({}, ())
    same = {"staged": staged, "sampling": sampling}
    first = plan_of(mask, branches, rows, start=PREFIX, step=1, **same)
    second = plan_of(mask, branches, rows, start=PREFIX + staged, step=2, committed=staged, **same)
    for plan in (first, second):
        changed = in_segments(plan) if rows % 4 == 0 else plan
        runner.execute(step_of(runner, [changed] * requests, slots))


def run_any_steps(runner: BranchRunner) -> None:
    """Steps of all sizes; in some more rows are scored than the LM head takes at once."""
    draw = random.Random(0)
    for _ in range(6):
        rows = draw.choice([1, 3, 16, 17, 32, 63, 64])
        staged = min(rows, draw.choice([1, 7, 8, 16]))
        run_two_steps(
            runner, draw.randint(1, SLOTS), draw.randint(1, 9), rows, staged, draw.choice(SAMPLINGS)
        )
    run_two_steps(runner, SLOTS, 3, 32, STAGED, SAMPLINGS[1])


def run_commits_of_two_steps(runner: BranchRunner) -> None:
    """Two requests that were staged by different steps commit in one."""
    first, second = two_plans(runner.vocabulary.mask_token_id, 1, 7)
    runner.reconcile({}, ())
    for slot in (0, 1):
        runner.execute(step_of(runner, [first], [slot]))
    runner.execute(step_of(runner, [second, second]))


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        ("dream", "none"),
        ("nemotron", "none"),
        ("sdar", "w8"),
        ("sdar_moe", "none"),
        ("llada2", "w8a8"),
    ],
)
def test_no_step_after_the_warm_up_needs_another_variant(
    family: str, quantization: Any, variants: Variants
) -> None:
    """A kernel has one variant, but for that of dequantization, which has one with and one without a bias."""
    compiled = check_variants(variants, config_of(family, quantization))
    assert {kernel for kernel, number in compiled.items() if number > 1} <= {"_dequantize"}
    assert compiled.keys() >= {"_slot_attention", "_commit_rows", "_row_scores"}


@pytest.mark.parametrize(("family", "quantization"), [("dream", "w8a8"), ("llada2", "none")])
def test_no_step_of_a_shard_does_either(family: str, quantization: Any, variants: Variants) -> None:
    check_variants(variants, config_of(family, quantization), FakeShards())


def test_no_step_in_fp8_does_either(variants: Variants, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its trial would compare what was in memory, because kernels write nothing.
    monkeypatch.setattr(fp8, "has_fp8_kernel", lambda *_: True)
    compiled = check_variants(variants, fp8_config_of("llada2", FP8_SCALES[0]))
    assert compiled["_quantize_groups"] <= 2, "for inputs that fill a block, and for fewer"
