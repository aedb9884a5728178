"""Triton kernel of `quantize_rows`: a program reads a row twice, the second time from the GPU's cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels.int8 import INT8_MAX
from lopa_ray.kernels.triton.quantize_groups import scale_of

BLOCK = tl.constexpr(1024)
LIMIT = tl.constexpr(float(INT8_MAX))


@triton.jit
def _quantize_rows(x, out, scales, size):
    row = tl.program_id(0).to(tl.int64)
    scale = scale_of(x + row * size, size, LIMIT, BLOCK)
    tl.store(scales + row, scale)
    for begin in range(0, size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        value = tl.load(x + row * size + columns, mask=columns < size, other=0.0).to(tl.float32)
        scaled = tl.div_rn(value, scale)
        # Round half to even, as torch does: at magnitudes around 1.5 · 2^23 fp32 has no fraction.
        rounded = (scaled + 12582912.0) - 12582912.0
        tl.store(out + row * size + columns, rounded.to(tl.int8), mask=columns < size)


def launch(x: Tensor) -> tuple[Tensor, Tensor]:
    """See `lopa_ray.kernels.int8`."""
    x = x.contiguous()
    rows, size = x.shape
    out = torch.empty_like(x, dtype=torch.int8)
    scales = x.new_empty(rows, dtype=torch.float32)
    _quantize_rows[(rows,)](x, out, scales, size)
    return out, scales
