"""Triton kernel of `dequantize`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _dequantize(product, scale, weight_scale, bias, out, size, HAS_BIAS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    value = tl.load(product + row * size + columns, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(scale + row) * tl.load(weight_scale + columns, mask=inside, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, value.to(out.dtype.element_ty), mask=inside)


def launch(
    product: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """See `lopa_ray.kernels.int8`."""
    product = product.contiguous()
    rows, size = product.shape
    out = torch.empty_like(product, dtype=dtype)
    tensors = product, scale, weight_scale, weight_scale if bias is None else bias, out
    _dequantize[(rows, triton.cdiv(size, BLOCK.value))](*tensors, size, HAS_BIAS=bias is not None)
    return out
