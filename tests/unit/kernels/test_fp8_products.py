"""Products of fp8: how activations are scaled, what torch's product is handed, and what happens where it has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels import fp8
from lopa_ray.kernels.fp8 import FP8, by_group, fp8_linear, has_fp8_kernel, quantize_groups, unfold

OUTPUTS, INPUTS = 48, 256

WIDTHS = {"rows": INPUTS, "groups": fp8.KERNEL_GROUP}


@pytest.fixture(autouse=True)
def fresh_trials() -> Iterator[None]:
    has_fp8_kernel.cache_clear()
    yield
    has_fp8_kernel.cache_clear()


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def weights(width: int) -> tuple[Tensor, Tensor]:
    """fp8 weights, and scales as a layer has them."""
    weight, scale = quantize_groups(draw(OUTPUTS, INPUTS), width)
    return weight, by_group(scale)


def scaled_mm(a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype) -> Tensor:
    """torch's product by its formula, with the demands of CUDA's: sizes, strides, and the recipes told by shapes.

    RowWise has contiguous scales; in BlockWise1x128 those of a matrix follow one another group by group.
    """
    (rows, inputs), outputs = a.shape, b.shape[1]
    assert a.dtype == b.dtype == FP8 and a.stride() == (inputs, 1) and b.stride() == (1, inputs)
    assert inputs % 16 == 0 and outputs % 16 == 0 and rows % 16 == 0
    groups = scale_a.shape[1]
    assert scale_a.shape == (rows, groups) and scale_b.shape == (groups, outputs)
    assert scale_a.dtype == scale_b.dtype == torch.float32
    if groups == 1:
        assert scale_a.is_contiguous() and scale_b.is_contiguous()
        assert scale_a.stride(1) == scale_b.stride(1) == 1
    else:
        assert groups == inputs // 128 and scale_a.stride() == (1, rows) and scale_b.stride() == (outputs, 1)
    width = inputs // groups
    return (unfold(a, scale_a, width) @ unfold(b.t(), scale_b.t(), width).t()).to(out_dtype)


@pytest.mark.parametrize("width", [1, 8, 40])
@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e4])
def test_a_group_is_off_by_a_sixteenth_of_each_number_at_most(width: int, spread: float) -> None:
    """fp8 has 3 bits behind the first one; below the smallest normal number steps are 2^-9 of a scale."""
    x = draw(30, 40) * spread
    x[3], x[4, 1:] = 0, 0
    quantized, scale = quantize_groups(x, width)
    assert quantized.dtype == FP8 and scale.shape == (30, 40 // width)
    per_number = scale.repeat_interleave(width, dim=1)
    error = (unfold(quantized, scale, width) - x).abs()
    assert (error <= torch.maximum(x.abs() / 16, per_number * 2**-10) * 1.001).all()
    assert quantized.float().abs().max() == fp8.FP8_MAX and not quantized[3].float().any()


def test_a_number_that_is_none_spoils_its_group_alone() -> None:
    x = draw(2, 8)
    x[1, 5] = float("nan")
    quantized, scale = quantize_groups(x, 4)
    unfolded = unfold(quantized, scale, 4)
    assert (
        unfolded[1, 4:].isnan().all() and not unfolded[0].isnan().any() and not unfolded[1, :4].isnan().any()
    )


def test_scales_of_one_group_have_the_strides_that_torch_demands() -> None:
    """Whatever made them: the kernel gives them as [1, R], contiguous, and a stride of that shape has no meaning."""
    with torch.inference_mode():
        scale = fp8._of_rows(torch.ones(5)[None].clone().as_strided((1, 5), (5, 1)))
    assert scale.shape == (5, 1) and scale.stride() == (1, 1)


def test_the_last_group_may_be_shorter() -> None:
    scale = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    got = unfold(torch.ones(2, 5).to(FP8), scale, 3)
    assert got.tolist() == [[1, 1, 1, 2, 2], [4, 4, 4, 8, 8]]


@pytest.mark.parametrize("rows", [1, 16, 33])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", WIDTHS)
def test_torch_gets_what_its_recipes_ask_for(
    kind: str, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(arguments)
        return scaled_mm(*arguments, **options)

    monkeypatch.setattr(fp8.torch, "_scaled_mm", counted)
    width = WIDTHS[kind]
    weight, scale = weights(width)
    added = draw(OUTPUTS).bfloat16() if bias else None
    x = draw(rows, INPUTS).bfloat16()
    out = fp8_linear(x, weight, scale, width, added)
    assert len(calls) == 2, "a trial and a product"
    assert out.shape == (rows, OUTPUTS) and out.dtype == torch.bfloat16
    wanted = F.linear(x.float(), unfold(weight, scale, width), None if added is None else added.float())
    assert 0.005 < (out.float() - wanted).norm() / wanted.norm() < 0.04
    fp8_linear(x, weight, scale, width, added)
    assert len(calls) == 3


@pytest.mark.skipif(
    not has_fp8_kernel("cpu", OUTPUTS, INPUTS, INPUTS), reason="this torch has no such product on the CPU"
)
@pytest.mark.parametrize("rows", [1, 33])
def test_the_product_of_this_cpu_is_that_of_the_formula(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scale = weights(INPUTS)
    x = draw(rows, INPUTS).bfloat16()
    out = fp8_linear(x, weight, scale, INPUTS, None)
    monkeypatch.setattr(fp8.torch, "_scaled_mm", scaled_mm)
    torch.testing.assert_close(out, fp8_linear(x, weight, scale, INPUTS, None), atol=0.1, rtol=0.01)


def fails(*arguments: Any, **options: Any) -> Tensor:
    raise RuntimeError("only supported on CUDA devices with compute capability >= 9.0\nand more")


def refuses(*arguments: Any, **options: Any) -> Tensor:
    raise ValueError("Invalid scaling configuration")


def transposes_scales(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """A product that takes the groups of a row in the wrong order."""
    return scaled_mm(a, b, scale_a=by_group(scale_a.flip(1)), scale_b=scale_b, out_dtype=out_dtype)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(fails, "compute capability"), (refuses, "Invalid scaling"), (transposes_scales, "it is wrong")],
)
def test_a_product_that_fails_or_is_wrong_is_not_used(
    kernel: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fp8.torch, "_scaled_mm", kernel)
    weight, scale = weights(128)
    x = draw(20, INPUTS).bfloat16()
    out = fp8_linear(x, weight, scale, 128, None)
    assert torch.equal(out, F.linear(x, unfold(weight, scale, 128).bfloat16()))
    assert reason in caplog.records[-1].getMessage() and "[48, 256] with scales of 128" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("inputs", "width"), [(256, 64), (200, 128)])
def test_groups_that_torch_has_no_recipe_for_are_not_tried(
    inputs: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> Tensor:
        raise AssertionError("tried")

    monkeypatch.setattr(fp8.torch, "_scaled_mm", never)
    assert not has_fp8_kernel("cpu", OUTPUTS, inputs, width)


def test_fp32_is_multiplied_by_unfolded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8.torch, "_scaled_mm", scaled_mm)
    weight, scale = weights(INPUTS)
    x = draw(20, INPUTS)
    assert torch.equal(fp8_linear(x, weight, scale, INPUTS, None), F.linear(x, unfold(weight, scale, INPUTS)))


@pytest.mark.parametrize(
    ("capability", "has"), [((8, 0), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)]
)
def test_capabilities(capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert fp8.computes_fp8(torch.device("cuda")) == has
