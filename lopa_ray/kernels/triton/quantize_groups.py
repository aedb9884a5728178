"""Triton kernel of `quantize_groups`: a program reads a group of a row twice, the second time from the GPU's cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels.fp8 import FP8, FP8_MAX

MAX_BLOCK = 1024
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
LIMIT = tl.constexpr(FP8_MAX)


@triton.jit
def scale_of(x, width, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    largest = tl.zeros((BLOCK,), tl.float32)
    broken = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, width, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        value = tl.load(x + columns, mask=columns < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(value))
        # tl.maximum ignores NaN, but a group with NaN has to become NaN as a whole.
        broken = broken | (value != value).to(tl.int32)
    scale = tl.maximum(tl.div_rn(tl.max(largest, 0), LIMIT), TINY)
    return tl.where(tl.max(broken, 0) > 0, float("nan"), scale)


@triton.jit
def _quantize_groups(x, out, scales, rows, size, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    first = row * size + group * width
    scale = scale_of(x + first, width, LIMIT, BLOCK)
    tl.store(scales + group * rows + row, scale)
    for begin in range(0, width, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        value = tl.load(x + first + columns, mask=columns < width, other=0.0).to(tl.float32)
        scaled = tl.clamp(tl.div_rn(value, scale), -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + first + columns, scaled.to(out.dtype.element_ty), mask=columns < width)


def launch(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """See `lopa_ray.kernels.fp8`."""
    x = x.contiguous()
    rows, size = x.shape
    groups = size // width
    out = torch.empty_like(x, dtype=FP8)
    scales = x.new_empty(groups, rows, dtype=torch.float32)
    _quantize_groups[(rows, groups)](x, out, scales, rows, size, width, block_size(width))
    return out, scales


def block_size(width: int) -> int:
    """Inputs that a program takes at once, of groups of so many."""
    return min(MAX_BLOCK, int(triton.next_power_of_2(width)))
