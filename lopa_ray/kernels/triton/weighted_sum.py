"""Triton kernel of `weighted_sum`: a program adds the results of one row, in the order of its experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _weighted_sum(
    results, places, weights, ends, out, size, num_ends, IS_PART: tl.constexpr, PER_TOKEN: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    total = tl.zeros((BLOCK,), tl.float32)
    for at in tl.static_range(PER_TOKEN):
        place = tl.load(places + row * PER_TOKEN + at)
        mask = inside
        if IS_PART:
            mask = inside & (place < tl.load(ends + num_ends - 1))
        result = tl.load(results + place * size + columns, mask=mask, other=0.0).to(tl.float32)
        total += result * tl.load(weights + row * PER_TOKEN + at)
    tl.store(out + row * size + columns, total.to(out.dtype.element_ty), mask=inside)


def launch(results: Tensor, places: Tensor, weights: Tensor, ends: Tensor | None = None) -> Tensor:
    """See `lopa_ray.kernels.weighted_sum`."""
    results, places, weights = results.contiguous(), places.contiguous(), weights.contiguous()
    (rows, per_token), size = places.shape, results.shape[1]
    out = torch.empty(rows, size, dtype=results.dtype, device=results.device)
    num_ends = 0 if ends is None else ends.shape[0]
    tensors = results, places, weights, places if ends is None else ends, out
    grid = rows, triton.cdiv(size, BLOCK.value)
    _weighted_sum[grid](*tensors, size, num_ends, ends is not None, per_token)
    return out
