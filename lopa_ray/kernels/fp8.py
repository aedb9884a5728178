"""Products of fp8 weights (float8_e4m3fn), whose rows have a scale for each group of inputs, the last one maybe
shorter.

Shape suffixes: R rows, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.operators import failure, operator
from lopa_ray.kernels.padding import padded_rows

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0

CUDA_CAPABILITY = (8, 9)  # the first compute capability with products of fp8

KERNEL_GROUP = 128
"""Inputs of a group, where a row has several, in torch's product (its recipe BlockWise1x128)."""

_TRIAL_ROWS = 32

_log = logging.getLogger("lopa.quantized")


def unfold(weight: Tensor, group_scale: Tensor, width: int) -> Tensor:
    """fp8 weights [..., O, I] times their scales [..., O, G], each of `width` inputs → fp32 [..., O, I]."""
    if group_scale.shape[-1] > 1:
        group_scale = group_scale.repeat_interleave(width, dim=-1)[..., : weight.shape[-1]]
    return weight.float().mul_(group_scale)


def quantize_groups(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Floating x [R, I] → fp8 [R, I] and scales fp32 [R, G]: the largest magnitude of each `width` inputs ÷ 448. I is a
    multiple of `width`. NaN makes its group NaN. Scales of several groups are laid out group by group, which is what
    torch's product takes."""
    quantized, scale = _quantize_groups(x, width)
    return quantized, _of_rows(scale)


def _of_rows(scale: Tensor) -> Tensor:
    """Contiguous scales [G, R] as [R, G], by a view. A dimension of one has the stride that torch's product demands."""
    return scale.view(-1, 1) if scale.shape[0] == 1 else scale.t()


@operator(
    lambda x, width: (
        torch.empty_like(x, dtype=FP8),
        x.new_empty(x.shape[1] // width, len(x), dtype=torch.float32),
    ),
    launches=1,
)
def _quantize_groups(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Quantise as `quantize_groups`, with scales [G, R]."""
    groups = x.float().unflatten(-1, (-1, width))
    # The lower bound avoids a division by zero for zeros alone.
    scale = (groups.abs().amax(dim=-1) / FP8_MAX).clamp_min_(torch.finfo(torch.float32).tiny)
    # A quotient that rounds up beyond 448 would become NaN.
    quantized = (groups / scale[..., None]).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
    return quantized.flatten(-2), scale.t().contiguous()


def by_group(scale: Tensor) -> Tensor:
    """The same scales, fp32 [..., R, G], group by group in memory."""
    return scale.mT.contiguous().mT


def fp8_linear(x: Tensor, weight: Tensor, group_scale: Tensor, width: int, bias: Tensor | None) -> Tensor:
    """x [R, I] times the transpose of fp8 weights [O, I] with scales fp32 [R, G], plus a bias [O] → [R, O], in the
    dtype of x. bf16 is multiplied in fp8 by torch's product, if it has one for the device and these sizes: each group
    of a row of x is scaled by itself. Else weights are unfolded in each call."""
    if x.dtype != torch.bfloat16 or not has_fp8_kernel(x.device.type, *weight.shape, width):
        return F.linear(x, unfold(weight, group_scale, width).to(x.dtype), bias)
    rows = x.shape[0]
    padded = padded_rows(rows)
    if padded > rows:
        x = F.pad(x, (0, 0, 0, padded - rows))
    out = _scaled_matmul(*quantize_groups(x, width), weight, group_scale)[:rows]
    return out if bias is None else out + bias


def _scaled_matmul(a: Tensor, a_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """fp8 [R, I] with scales [R, G] times the transpose of fp8 [O, I] with scales [O, G] → bf16 [R, O]."""
    # torch tells its recipes by the shapes of scales: RowWise for one group, BlockWise1x128 for more.
    return torch._scaled_mm(
        a, weight.t(), scale_a=a_scale, scale_b=weight_scale.t(), out_dtype=torch.bfloat16
    )


@cache
def has_fp8_kernel(device: str, out_features: int, in_features: int, width: int) -> bool:
    """Whether torch's product of fp8 runs there for weights [O, I] with scales of `width` inputs. Tried once per shape:
    sizes and recipes depend on the device and on the version of CUDA."""
    if width != in_features and (width != KERNEL_GROUP or in_features % width):
        return False
    shape = out_features, in_features
    reason = failure(lambda: _try_kernel(torch.device(device), *shape, width), "it is wrong")
    if reason is not None:
        message = "no fp8 product on %s for weights %s with scales of %d inputs: %s"
        _log.warning(message, device, list(shape), width, reason)
    return reason is None


def _try_kernel(device: torch.device, out_features: int, in_features: int, width: int) -> bool:
    """Whether the product equals the product of unfolded factors, but for the rounding of bf16."""

    def numbers(rows: int) -> tuple[Tensor, Tensor]:
        x = torch.arange(rows * in_features, dtype=torch.float32, device=device).remainder_(97).sub_(48)
        groups = torch.arange(in_features, device=device) // width
        spread = 1 + torch.arange(rows, device=device)[:, None] % 7 + groups % 5
        return quantize_groups(x.view(rows, in_features) * spread, width)

    factors = numbers(_TRIAL_ROWS), numbers(out_features)
    product = _scaled_matmul(*factors[0], *factors[1]).float()
    wanted = unfold(*factors[0], width) @ unfold(*factors[1], width).t()
    return bool((product - wanted).norm() <= 0.02 * wanted.norm())


def computes_fp8(device: torch.device) -> bool:
    """Whether torch multiplies fp8 on that CUDA device: by its compute capability."""
    return torch.cuda.get_device_capability(device) >= CUDA_CAPABILITY
