"""The host's part of Triton kernels: the variants that are compiled, and the number and the time of launches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

from lopa_lab.bench.launch_counter import META
from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.execution import packing
from lopa_ray.execution.model_loader import warm_up
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_columns import StepColumns, copy_to_device
from lopa_ray.kernels import fp8
from lopa_ray.kernels.operators import LAUNCHES
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.protocol.sampling_params import SamplingParams
from support.deviceless_triton import (
    DevicelessDriver,
    Variants,
    deviceless_triton,
    launcher_of,
    recorded_variants,
)
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
    launches_of,
    runner_of,
    two_plans,
)

# Kernels write nothing, so reports have whatever was in memory.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning")

MATRIX = [(family.name, format) for family in FAMILIES for format in ("none", "w8", "w8a8")]

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(no_eos_before=CAPACITY, stop_token_ids=(3,)),
    SamplingParams(no_eos_before=CAPACITY, stop_token_ids=(3, 4, 5)),
    SamplingParams(ranking="neg_entropy"),
    SamplingParams(precision="float16"),
    SamplingParams(0.7, top_p=0.9, top_k=8),
)


def host_runner(
    family: str,
    quantization: Any,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
    dtype: torch.dtype = torch.bfloat16,
) -> BranchRunner:
    """A runner on the CPU, where addresses are real."""
    config = config_of(family, quantization)
    return runner_of(empty_model(config, dtype, torch.device("cpu"), tp_group))


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
    first = plan_of(mask, branches, rows, start=PREFIX, step=1, staged=staged, sampling=sampling)
    second = plan_of(
        mask,
        branches,
        rows,
        start=PREFIX + staged,
        step=2,
        committed=staged,
        staged=staged,
        sampling=sampling,
    )
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


@pytest.mark.parametrize(("family", "quantization"), MATRIX)
def test_no_step_after_the_warm_up_needs_another_variant(
    family: str, quantization: Any, variants: Variants
) -> None:
    """A kernel has one variant, but for that of dequantization, which has one with and one without a bias."""
    runner = host_runner(family, quantization)
    warm_up(runner)
    compiled = variants.by_kernel
    assert {kernel for kernel, number in compiled.items() if number > 1} <= {"_dequantize"}
    run_any_steps(runner)
    run_commits_of_two_steps(runner)
    assert compiled.keys() >= {"_slot_attention", "_commit_rows", "_row_scores"}
    assert variants.by_kernel - compiled == {}


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_no_step_of_a_shard_does_either(family: str, quantization: Any, variants: Variants) -> None:
    runner = host_runner(family, quantization, FakeShards())
    warm_up(runner)
    compiled = variants.by_kernel
    run_any_steps(runner)
    assert variants.by_kernel - compiled == {}


@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_no_step_in_fp8_does_either(family: str, variants: Variants, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its trial would compare what was in memory, because kernels write nothing.
    monkeypatch.setattr(fp8, "has_fp8_kernel", lambda *_: True)
    config = fp8_config_of(family, FP8_SCALES[0])
    runner = runner_of(empty_model(config, torch.bfloat16, torch.device("cpu")))
    warm_up(runner)
    compiled = variants.by_kernel
    assert compiled["_quantize_groups"] <= 2, "for inputs that fill a block, and for fewer"
    run_any_steps(runner)
    assert variants.by_kernel - compiled == {}


def test_a_variant_more_is_found(variants: Variants) -> None:
    """Triton compiles anew for another alignment, for a size of 1, and for another dtype."""
    x = torch.zeros(5, 64, dtype=torch.bfloat16)
    launcher_of("silu_mul")(x)
    assert variants.by_kernel == {"_silu_mul": 1}
    launcher_of("silu_mul")(x[:3])
    assert variants.by_kernel == {"_silu_mul": 1}
    launcher_of("silu_mul")(x.flatten()[1:129].view(2, 64))
    assert variants.by_kernel == {"_silu_mul": 2}
    launcher_of("silu_mul")(x[:, :2])
    assert variants.by_kernel == {"_silu_mul": 3}
    launcher_of("silu_mul")(x.float())
    assert variants.by_kernel == {"_silu_mul": 4}


LAUNCHES_OF_LAYERS = {
    "none": {"dense": 5, "experts": 10, "shared": 1},
    "w8": {"dense": 5, "experts": 10, "shared": 1},
    "w8a8": {"dense": 13, "experts": 16, "shared": 5},
}
"""Format → Triton kernels of a step for each layer, by its kind."""


@pytest.mark.parametrize(("requests", "branches", "rows"), [(1, 1, 16), (SLOTS, 4, 16)])
@pytest.mark.parametrize(("family", "quantization"), MATRIX)
def test_a_step_launches_as_many_kernels_for_any_number_of_requests(
    family: str, quantization: str, requests: int, branches: int, rows: int, variants: Variants
) -> None:
    runner = host_runner(family, quantization)
    first, second = two_plans(runner.vocabulary.mask_token_id, branches, rows)
    runner.execute(step_of(runner, [first] * requests))
    before = variants.launches.total()
    runner.execute(step_of(runner, [second] * requests))
    most = launches_of(family, once=4, **LAUNCHES_OF_LAYERS[quantization])
    assert 0 < variants.launches.total() - before <= most


# Host time

ROWS, WIDTH, HEADS, KV_HEADS, DIM, EXPERTS = 16, 64, 28, 4, 128, 8


def arguments_of(operator: str) -> tuple[Any, ...]:
    """Arguments of a small call."""
    x, wide = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, HEADS + 2 * KV_HEADS, DIM)
    table, kv = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(2, ROWS, KV_HEADS, DIM)
    slots = torch.zeros(1, 2, 2, KV_HEADS, 64, DIM)
    angle = torch.zeros(ROWS, 1, DIM)
    scales = torch.zeros(ROWS)
    arguments: dict[str, tuple[Any, ...]] = {
        "add_rms_norm": (x, x, torch.zeros(WIDTH), 1e-6),
        "choose_experts": (x, None, 2, 1, 1, 1.0),
        "commit_rows": (slots, torch.zeros(2, 2, 8, KV_HEADS, DIM), table),
        "dequantize": (x.to(torch.int32), scales, torch.zeros(WIDTH), None, torch.float32),
        "grouped_matmul": (x, torch.zeros(EXPERTS, 32, WIDTH), table[:, 0].to(torch.int32), None, 0),
        "invariant_linear": (x, torch.zeros(32, WIDTH), None),
        "quantize_groups": (x, WIDTH),
        "quantize_rows": (x,),
        "rotate_qkv": (wide, HEADS, angle, angle, None, None, 1e-6, kv),
        "row_scores": (x, torch.zeros(ROWS, 9, dtype=torch.float64), table[:, :0], torch.zeros(WIDTH) > 0),
        "silu_mul": (x,),
        "slot_attention": (
            wide[:, :HEADS].contiguous(), kv[0], kv[1], slots, 0, torch.zeros(11, 5, dtype=torch.int64), table[:, 0],
        ),
        "sort_rows": (table, 0, EXPERTS, EXPERTS),
        "split_attention": (
            wide[:, :HEADS].contiguous(), kv[0], kv[1], slots, 0, torch.zeros(11, 5, dtype=torch.int64), table[:, 0],
            torch.zeros(16, 7, dtype=torch.int64),
        ),
        "weighted_sum": (x, table, torch.zeros(4, 3), None),
    }  # fmt: skip
    return arguments[operator]


@pytest.fixture(scope="module")
def driver() -> Iterator[DevicelessDriver]:
    """A driver, for launches of kernels that are compiled."""
    with deviceless_triton() as made:
        yield made


def seconds_of(call: Callable[[], object], calls: int = 50) -> float:
    """Seconds of processor time per call."""
    began = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - began) / calls


MOST_MATMULS = 1.0
"""How many of the products below a launch may take. It takes 0.06 to 0.15 of one, of about 200 µs; looking up a
configuration by measuring, compiling, or checking values takes several."""


@pytest.mark.parametrize("operator", LAUNCHES)
def test_a_launch_takes_little_of_the_host(operator: str, driver: DevicelessDriver) -> None:
    """As a ratio to a matmul of 64 × 256 × 512 in fp32 on this CPU, in turns: processors differ, and are shared."""
    launch, arguments = launcher_of(operator), arguments_of(operator)
    x, weight = torch.zeros(64, 256), torch.zeros(512, 256)
    with torch.inference_mode():
        launch(*arguments)
        before = driver.launches
        launch(*arguments)
        assert driver.launches - before == LAUNCHES[operator]
        ratios = [
            seconds_of(lambda: launch(*arguments)) / seconds_of(lambda: F.linear(x, weight)) for _ in range(9)
        ]
    assert median(ratios) < MOST_MATMULS
