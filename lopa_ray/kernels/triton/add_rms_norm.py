"""Triton kernel of `add_rms_norm`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(x, delta, weight, total, out, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    at = row * size + columns
    value = tl.load(x + at, mask=inside, other=0.0)
    more = tl.load(delta + at, mask=inside, other=0.0)
    value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
    tl.store(total + at, value, mask=inside)
    wide = value.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)).to(value.dtype)
    tl.store(out + at, tl.load(weight + columns, mask=inside, other=0.0) * normed, mask=inside)


def launch(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `lopa_ray.kernels.rms_norm`."""
    x, delta = x.contiguous(), delta.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    rows, size = x.shape
    _add_rms_norm[(rows,)](x, delta, weight, total, out, size, eps, **options(size))
    return total, out


def options(size: int) -> dict[str, int]:
    """Block size and warps: a program processes a whole row of `size` elements, with 16 elements per thread."""
    block = triton.next_power_of_2(size)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}
