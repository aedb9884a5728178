"""Triton kernel of `invariant_linear`: a program has some rows and some outputs, and sums all of their inputs in order.
Its tile depends on the weights alone, so the sums of a row depend neither on the number of rows nor on its place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_BLOCK = 64
INPUT_BLOCK = 64

MANY_OUTPUTS = 16_384
"""Outputs from which on wide tiles are enough programs for a GPU, even with one tile of rows."""


@triton.jit(do_not_specialize=["rows"])
def _invariant_linear(
    x,
    weight,
    bias,
    out,
    rows,
    inputs,
    outputs,
    HAS_BIAS: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    INPUT_BLOCK: tl.constexpr,
):
    # Programs that follow each other read the same weights.
    row = (tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * OUTPUT_BLOCK + tl.arange(0, OUTPUT_BLOCK)).to(tl.int64)[None, :]
    is_row, is_column = row < rows, column < outputs
    total = tl.zeros((ROW_BLOCK, OUTPUT_BLOCK), dtype=tl.float32)
    for at in range(0, inputs, INPUT_BLOCK):
        index = at + tl.arange(0, INPUT_BLOCK)
        left = tl.load(x + row * inputs + index[None, :], mask=is_row & (index < inputs)[None, :], other=0.0)
        right = tl.load(
            weight + column * inputs + index[:, None], mask=is_column & (index < inputs)[:, None], other=0.0
        )
        total += tl.dot(left, right, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + column, total.to(out.dtype.element_ty), mask=is_row & is_column)


def constants(outputs: int, dtype: torch.dtype, *, has_bias: bool) -> dict[str, int]:
    wide = outputs >= MANY_OUTPUTS and dtype != torch.float32
    return {
        "HAS_BIAS": has_bias,
        "ROW_BLOCK": ROW_BLOCK,
        "OUTPUT_BLOCK": 128 if wide else 32,
        "INPUT_BLOCK": INPUT_BLOCK if dtype != torch.float32 else INPUT_BLOCK // 2,
    }


def launch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `lopa_ray.kernels.invariant_linear`."""
    x, weight = x.contiguous(), weight.contiguous()
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = x.new_empty(rows, outputs)
    given = constants(outputs, x.dtype, has_bias=bias is not None)
    grid = (triton.cdiv(rows, given["ROW_BLOCK"]), triton.cdiv(outputs, given["OUTPUT_BLOCK"]))
    _invariant_linear[grid](x, weight, weight if bias is None else bias, out, rows, inputs, outputs, **given)
    return out
