"""Kernels of whole steps at published shapes, compiled for kinds of GPU: they compile, and fit their shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")


from lopa_lab.bench.launch_counter import META, LaunchCounter
from lopa_lab.bench.model_shapes import SHAPES, model_to_measure
from lopa_lab.bench.step_plans import step_of
from lopa_ray.kernels import fp8
from lopa_ray.kernels.operators import CALLS, LAUNCHES
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import QUANTIZATION_CONFIGS, NativeConfig
from lopa_ray.model.linear import prepare
from support.deviceless_triton import DevicelessDriver, compiled_kernels, deviceless_triton
from support.empty_models import empty_model
from support.fake_steps import FP8_SCALES, runner_of, two_plans

ON_CPUS = ("dream-27m", "smollm2-135m")  # shapes of models that are for CPUs
OTHERS = [shape for shape in SHAPES if shape not in (*ON_CPUS, "dream-7b", "sdar-30b-a3b")]

FP8_ARCH = 89
"""The first kind of GPU with numbers of fp8."""

MASK = 5
"""For shapes that name no mask token."""


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
    for quantization in QUANTIZATION_CONFIGS:
        run_steps(replace(config.with_quantization(quantization), num_layers=2))


def run_fp8_steps(config: NativeConfig) -> None:
    """The same with fp8 weights, as if torch had products of them for all sizes."""
    with patch.object(fp8, "has_fp8_kernel", lambda *_: True):
        for scales in FP8_SCALES:
            run_steps(replace(config, quantization="fp8", fp8=scales, num_layers=2))


def run_invariant_steps(config: NativeConfig) -> None:
    """The same with products that do not depend on the batch."""
    run_steps(replace(config, num_layers=2, batch_invariant=True))


@pytest.fixture(
    scope="module",
    params=[90, pytest.param(80, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.nightly)],
    ids="sm_{}".format,
)
def gpu(request: pytest.FixtureRequest) -> Iterator[DevicelessDriver]:
    """A kind of GPU. What is compiled for one shape serves the others, as far as kernels are the same."""
    with deviceless_triton(request.param) as driver:
        yield driver


@pytest.mark.parametrize(
    "shape",
    [
        "dream-7b",
        pytest.param("sdar-30b-a3b", marks=pytest.mark.slow),
        *(pytest.param(shape, marks=pytest.mark.nightly) for shape in OTHERS),
    ],
)
def test_published_shapes(gpu: DevicelessDriver, shape: str) -> None:
    config = config_of(shape)
    run_steps(config)
    run_int8_steps(config)
    run_invariant_steps(config)
    if gpu.arch >= FP8_ARCH:
        run_fp8_steps(config)
    compiled = {operator for operator, kernels in compiled_kernels().items() if kernels}
    assert compiled >= {"slot_attention", "commit_rows", "row_scores", "invariant_linear", "quantize_rows"}


def test_all_operators_are_compiled(gpu: DevicelessDriver) -> None:
    """Those of a model with experts, of float32, and of every size of heads. Each call launches as many kernels as its
    operator says."""
    config = config_of("llada2.0-mini")
    before = gpu.launches
    calls = {name: Mock(wraps=call) for name, call in CALLS.items()}
    with patch.dict(CALLS, calls):
        run_int8_steps(config)
        run_invariant_steps(config)
        if gpu.arch >= FP8_ARCH:
            run_fp8_steps(config)
        run_steps(replace(config, num_layers=2), torch.float32)
        tiles, parts = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(16, 7, dtype=torch.int64)
        stops = torch.zeros(16, dtype=torch.int64)
        for dtype, dim in ((torch.float32, 128), *((torch.bfloat16, dim) for dim in (64, 96, 128, 256))):
            q, kv = torch.zeros(16, 4, dim, dtype=dtype), torch.zeros(2, 16, 2, dim, dtype=dtype)
            slots = torch.zeros(1, 2, 2, 2, 64, dim, dtype=dtype)
            CALLS["slot_attention"](q, *kv, slots, 0, tiles, stops)
            CALLS["split_attention"](q, *kv, slots, 0, tiles, stops, parts)
    called = {name for name, call in calls.items() if call.called}
    assert called | ({"quantize_groups"} if gpu.arch < FP8_ARCH else set()) == set(LAUNCHES)
    assert gpu.launches - before == sum(LAUNCHES[name] * call.call_count for name, call in calls.items())
