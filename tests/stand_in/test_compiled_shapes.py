"""Kernels of whole steps at published shapes, compiled for two kinds of GPU: they fit, and spill no registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

from lopa_lab.bench.launch_counter import META, LaunchCounter
from lopa_lab.bench.model_shapes import SHAPES, model_to_measure
from lopa_lab.bench.step_plans import step_of
from lopa_ray.kernels import fp8
from lopa_ray.kernels.operators import LAUNCHES
from lopa_ray.kernels.triton import row_scores, slot_attention
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import prepare
from support.cubins import Resources
from support.deviceless_triton import compiled_kernels, deviceless_triton, launcher_of
from support.empty_models import empty_model
from support.fake_steps import FP8_SCALES, runner_of, two_plans

PUBLISHED = tuple(shape for shape in SHAPES if shape != "dream-27m")

MASK = 5
"""For shapes that name no mask token."""

LIMITS = {
    "add_rms_norm": (48, 4),
    "choose_experts": (128, 8),
    "commit_rows": (40, 8),
    "dequantize": (40, 8),
    "grouped_matmul": (80, 4),
    "invariant_linear": (255, 1),
    "quantize_groups": (40, 8),
    "quantize_rows": (40, 8),
    "rotate_qkv": (48, 8),
    "row_scores": (168, 1),
    "silu_mul": (40, 8),
    "slot_attention": (255, 2),
    "sort_rows": (96, 4),
    "split_attention": (255, 2),
    "weighted_sum": (48, 8),
}
"""Operator → registers of a thread at most, and blocks of a multiprocessor at least, in half precision."""

FP32_LIMITS = LIMITS | {"slot_attention": (255, 1)}


def config_of(shape: str) -> NativeConfig:
    with model_to_measure(shape, shape) as (_, settings):
        return load_config(settings["path"], mask_token_id=MASK)


def run_steps(config: NativeConfig, dtype: torch.dtype = torch.bfloat16) -> None:
    """Two steps of a model without numbers, in which everything is launched that its steps launch."""
    model = empty_model(config, dtype, META)
    prepare(model)
    runner = runner_of(model)
    for plan in two_plans(config.mask_token_id, 2, 16):
        with LaunchCounter():
            runner.execute(step_of(runner, [plan]))


def run_int8_steps(config: NativeConfig) -> None:
    """The same with int8 weights, and activations, in two layers: kernels of layers do not depend on their number."""
    for quantization in ("w8", "w8a8"):
        run_steps(replace(config.with_quantization(quantization), num_layers=2))


def run_fp8_steps(config: NativeConfig) -> None:
    """The same with fp8 weights, as if torch had products of them for all sizes."""
    with patch.object(fp8, "has_fp8_kernel", lambda *_: True):
        for scales in FP8_SCALES:
            run_steps(replace(config, quantization="fp8", fp8=scales, num_layers=2))


def run_invariant_steps(config: NativeConfig) -> None:
    """The same with products that do not depend on the batch."""
    run_steps(replace(config, num_layers=2, batch_invariant=True))


def resources() -> dict[str, list[Resources]]:
    """Of all kernels that are compiled here."""
    return {
        operator: [Resources.of(kernel) for kernel in kernels]
        for operator, kernels in compiled_kernels().items()
    }


def check(found: dict[str, list[Resources]], limits: dict[str, tuple[int, int]]) -> None:
    for operator, kernels in found.items():
        registers, blocks = limits[operator]
        for kernel in kernels:
            assert (kernel.stack_bytes, kernel.local_bytes) == (0, 0), f"{operator} spills: {kernel}"
            assert kernel.registers <= registers, f"{operator}: {kernel}"
            assert kernel.blocks_per_sm >= blocks, f"{operator}: {kernel}"


@pytest.fixture(scope="module", params=[90, 100], ids="sm_{}".format)
def arch(request: pytest.FixtureRequest) -> Iterator[int]:
    """A kind of GPU. What is compiled for one shape serves the others, as far as kernels are the same."""
    with deviceless_triton(request.param):
        yield request.param


@pytest.mark.parametrize("shape", PUBLISHED)
def test_published_shapes(arch: int, shape: str) -> None:
    run_steps(config_of(shape))
    run_int8_steps(config_of(shape))
    run_invariant_steps(config_of(shape))
    run_fp8_steps(config_of(shape))
    check(resources(), LIMITS)


def test_all_operators_are_compiled(arch: int) -> None:
    run_int8_steps(config_of("llada2.0-mini"))
    run_invariant_steps(config_of("llada2.0-mini"))
    run_fp8_steps(config_of("llada2.0-mini"))
    q, kv = torch.zeros(16, 4, 128, dtype=torch.bfloat16), torch.zeros(2, 16, 2, 128, dtype=torch.bfloat16)
    slots = torch.zeros(1, 2, 2, 2, 64, 128, dtype=torch.bfloat16)
    tiles, parts = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(16, 7, dtype=torch.int64)
    launcher_of("split_attention")(
        q, kv[0], kv[1], slots, 0, tiles, torch.zeros(16, dtype=torch.int64), parts
    )
    check(resources(), LIMITS)
    assert {operator for operator, kernels in compiled_kernels().items() if kernels} == set(LAUNCHES)


@pytest.mark.parametrize("arch", [90, 100])
def test_fp32(arch: int) -> None:
    with deviceless_triton(arch):
        run_steps(replace(config_of("dream-7b"), num_layers=2), torch.float32)
        check(resources(), FP32_LIMITS)


def test_a_kernel_that_spills_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a fifth of the registers that it needs."""
    monkeypatch.setitem(row_scores.OPTIONS, "maxnreg", 32)
    logits, numbers = torch.zeros(16, 1000, dtype=torch.bfloat16), torch.zeros(16, 9, dtype=torch.float64)
    with deviceless_triton():
        launcher_of("row_scores")(logits, numbers, torch.zeros(16, 0, dtype=torch.int64), logits[0] > 0)
        found = resources()
    with pytest.raises(AssertionError, match="row_scores spills"):
        check(found, LIMITS)


def test_a_kernel_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton itself, which knows how much shared memory a block may have."""
    from triton.runtime.errors import OutOfResources

    options = slot_attention.options(128, torch.bfloat16)
    monkeypatch.setattr(slot_attention, "options", lambda *_: options | {"num_stages": 7})
    q, kv = torch.zeros(16, 4, 128, dtype=torch.bfloat16), torch.zeros(2, 16, 2, 128, dtype=torch.bfloat16)
    slots = torch.zeros(1, 2, 2, 2, 64, 128, dtype=torch.bfloat16)
    tiles, stops = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
    with deviceless_triton(), pytest.raises(OutOfResources, match="shared memory"):
        launcher_of("slot_attention")(q, kv[0], kv[1], slots, 0, tiles, stops)
