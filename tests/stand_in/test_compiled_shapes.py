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
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import prepare
from support.deviceless_triton import compiled_kernels, deviceless_triton, launcher_of
from support.empty_models import empty_model
from support.fake_steps import FP8_SCALES, runner_of, two_plans

PUBLISHED = tuple(shape for shape in SHAPES if shape != "dream-27m")

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
