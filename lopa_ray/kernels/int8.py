"""Quantization of rows of activations to int8, and dequantization of the integer matmul's result.

Shape suffixes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator

INT8_MAX = 127

EXACT_FP32_INPUTS = 1024
"""So many products of int8 numbers add up to less than 2^24: fp32 holds every partial sum, in any order."""


@operator(
    lambda x: (torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)), launches=1
)
def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floating x [R, I] → int8 [R, I], and the scale of each row, fp32 [R]: its largest magnitude ÷ 127."""
    wide = x.float()
    return scale_rows(wide, wide.abs().amax(dim=-1))


@operator(lambda product, *others: torch.empty_like(product, dtype=others[-1]), launches=1)
def dequantize(
    product: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Product int32 [R, O] times the scales of rows [R] and of outputs [O], plus a bias [O] → [R, O] of `dtype`. The
    scales are fp32, and so is the computation."""
    out = product.float().mul_(scale[:, None]).mul_(weight_scale)
    return (out if bias is None else out.add_(bias)).to(dtype)


def scale_rows(wide: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize fp32 rows [R, I] with largest magnitudes `largest` fp32 [R]; returns the same as `quantize_rows`."""
    # The lower bound avoids a division by zero for a row of zeros.
    scale = (largest / INT8_MAX).clamp_min_(torch.finfo(torch.float32).tiny)
    return (wide / scale[:, None]).round_().to(torch.int8), scale


def exact_matmul(a: Tensor, weight: Tensor) -> Tensor:
    """int8 [R, I] times the transpose of int8 [O, I] → exact int32 [R, O], on any device that multiplies fp32. It goes
    in pieces whose sums are exact."""
    out = torch.zeros(a.shape[0], weight.shape[0], dtype=torch.int32, device=a.device)
    pieces = (torch.split(matrix, EXACT_FP32_INPUTS, dim=1) for matrix in (a, weight))
    for left, right in zip(*pieces, strict=True):
        out += (left.float() @ right.float().t()).to(torch.int32)
    return out
