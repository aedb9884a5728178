"""Triton kernel of `grouped_matmul`: a program has some rows of one expert, and some outputs.

There are as many programs as rows of any split over the experts may take; each finds out which expert it has, and those
that are too many end at once. An expert's tiles begin at its own first row, and inputs are never split over programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_BLOCK, WHOLE_ROW_BLOCK = 16, 64
"""Rows of a tile: experts have few rows each, and a single matrix has all rows, which read its weights less often."""
OUTPUT_BLOCK = tl.constexpr(64)
INPUT_BLOCK = 64


@triton.jit(do_not_specialize=["experts"])
def _grouped_matmul(
    x,
    weight,
    ends,
    group_scale,
    out,
    experts,
    inputs,
    outputs,
    EXPERT_BLOCK: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    INPUT_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tile = tl.program_id(0)
    ids = tl.arange(0, EXPERT_BLOCK)
    stop = tl.load(ends + ids, mask=ids < experts, other=0)
    start = tl.load(ends + ids - 1, mask=(ids > 0) & (ids < experts), other=0)
    tiles = (tl.maximum(stop - start, 0) + ROW_BLOCK - 1) // ROW_BLOCK
    tiles_up_to = tl.cumsum(tiles, 0)
    expert = tl.sum((tiles_up_to <= tile).to(tl.int32), 0)
    if expert < experts:
        own = ids == expert
        first = tl.sum(tl.where(own, tiles_up_to - tiles, 0), 0)
        begin = tl.sum(tl.where(own, start, 0), 0)
        end = tl.sum(tl.where(own, stop, 0), 0)
        row = (begin + (tile - first) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)).to(tl.int64)[:, None]
        column = tl.program_id(1) * OUTPUT_BLOCK + tl.arange(0, OUTPUT_BLOCK)
        weight_row = (expert.to(tl.int64) * outputs + column)[None, :]
        is_row, is_column = row < end, (column < outputs)[None, :]
        total = tl.zeros((ROW_BLOCK, OUTPUT_BLOCK), dtype=tl.int32 if EXACT else tl.float32)
        for at in range(0, inputs, INPUT_BLOCK):
            index = at + tl.arange(0, INPUT_BLOCK)
            left = tl.load(
                x + row * inputs + index[None, :], mask=is_row & (index < inputs)[None, :], other=0
            )
            right = tl.load(
                weight + weight_row * inputs + index[:, None],
                mask=is_column & (index < inputs)[:, None],
                other=0.0,  # an integer cannot become fp8
            )
            if WIDTH:
                groups = tl.cdiv(inputs, WIDTH)
                if WIDTH % INPUT_BLOCK == 0:
                    scale = tl.load(
                        group_scale + weight_row * groups + at // WIDTH, mask=is_column, other=0.0
                    )
                else:
                    scale = tl.load(
                        group_scale + weight_row * groups + (index // WIDTH)[:, None],
                        mask=is_column & (index < inputs)[:, None],
                        other=0.0,
                    )
                right = right.to(tl.float32) * scale
            if EXACT:
                total += tl.dot(left, right, out_dtype=tl.int32)
            else:
                total += tl.dot(left, right.to(left.dtype), input_precision="ieee")
        tl.store(
            out + row * outputs + column[None, :], total.to(out.dtype.element_ty), mask=is_row & is_column
        )


ANY_WIDTH = 2**30
"""The width of groups where rows have one scale each: so the kernel is the same for any number of inputs."""


def constants(experts: int, *, exact: bool, width: int = 0) -> dict[str, int]:
    return {
        "EXPERT_BLOCK": triton.next_power_of_2(experts),
        "ROW_BLOCK": WHOLE_ROW_BLOCK if experts == 1 else ROW_BLOCK,
        "INPUT_BLOCK": INPUT_BLOCK,
        "EXACT": exact,
        "WIDTH": width,
    }


def launch(x: Tensor, weight: Tensor, ends: Tensor, group_scale: Tensor | None, width: int) -> Tensor:
    """See `lopa_ray.kernels.grouped_matmul`."""
    x, weight = x.contiguous(), weight.contiguous()
    rows, inputs = x.shape
    experts, outputs, _ = weight.shape
    exact = x.dtype == torch.int8
    out = x.new_empty(rows, outputs, dtype=torch.int32 if exact else x.dtype)
    scales = ends if group_scale is None else group_scale.contiguous()
    if group_scale is None:
        width = 0
    elif group_scale.shape[2] == 1:
        width = ANY_WIDTH
    # Each expert has at most one tile that is not full.
    given = constants(experts, exact=exact, width=width)
    tiles = rows // given["ROW_BLOCK"] + min(experts, rows)
    grid = tiles, triton.cdiv(outputs, OUTPUT_BLOCK.value)
    _grouped_matmul[grid](x, weight, ends, scales, out, experts, inputs, outputs, **given)
    return out
