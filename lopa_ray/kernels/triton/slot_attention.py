"""Triton kernel of `slot_attention`: each program computes flash attention of a tile, or a part, for one KV head."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels.slot_attention import PART_COLUMNS, PART_KEYS as KEYS, TILE_COLUMNS, TILE_ROWS

PART_KEYS, PAIRS = tl.constexpr(KEYS), tl.constexpr(TILE_ROWS)


@triton.jit(do_not_specialize=["layer", "layers"])  # otherwise compiled again for some values of these
def _slot_attention(
    q,
    k,
    v,
    slots,
    out,
    tiles,
    stops,
    layer,
    layers,
    capacity,
    fresh_stride,
    scale,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    OF_PARTS: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):
    tile = tiles + tl.program_id(0) * COLUMNS
    kv_head = tl.program_id(1)
    slot = tl.load(tile)
    start = tl.load(tile + 1).to(tl.int32)
    first = tl.load(tile + 2)
    rows = tl.load(tile + 3).to(tl.int32)
    if rows > 0:
        pair = tl.load(tile + 4).to(tl.int32) + tl.arange(0, PAIRS)
        inside = pair < rows * GROUP
        row = first + pair // GROUP
        column = tl.arange(0, DIM_BLOCK)
        within = column < DIM
        q_at = (row * (KV_HEADS * GROUP) + kv_head * GROUP + pair % GROUP)[:, None] * DIM + column[None, :]
        query = tl.load(q + q_at, mask=inside[:, None] & within[None, :], other=0.0)
        stop = tl.load(stops + row, mask=inside, other=0).to(tl.int32)
        low, high = 0, tl.max(stop, 0)
        if OF_PARTS:
            low = tl.load(tile + 5).to(tl.int32) * PART_KEYS
            high = tl.minimum(high, low + PART_KEYS)
        largest = tl.full((PAIRS,), float("-inf"), tl.float32)
        total = tl.zeros((PAIRS,), tl.float32)
        mixed = tl.zeros((PAIRS, DIM_BLOCK), tl.float32)
        cached = slots + (((slot * layers + layer) * 2) * KV_HEADS + kv_head) * capacity * DIM
        # Online softmax over three runs: positions before the lane, in the lane, and after the lane.
        for run in range(3):
            keys, values, stride = cached, cached + capacity.to(tl.int64) * (KV_HEADS * DIM), DIM
            begin, end = low, tl.minimum(start, high)
            if run == 1:
                # Both pointers are shifted so that position `start` is the lane's first row.
                lane = first * fresh_stride + kv_head * DIM - start.to(tl.int64) * fresh_stride
                keys, values, stride = k + lane, v + lane, fresh_stride
                begin, end = tl.maximum(start, low), tl.minimum(start + rows, high)
            if run == 2:
                begin, end = tl.maximum(start + rows, low), high
            stride = tl.multiple_of(stride, ALIGN)
            for block in range(begin, end, KEY_BLOCK):
                position = block + tl.arange(0, KEY_BLOCK)
                there = position < end
                offset = position.to(tl.int64) * stride
                mask = there[:, None] & within[None, :]
                at = offset[:, None] + column[None, :]
                key = tl.load(keys + at, mask=mask, other=0.0)
                score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                score = tl.where(there[None, :] & (position[None, :] < stop[:, None]), score, float("-inf"))
                highest = tl.maximum(largest, tl.max(score, 1))
                # For a pair that has seen no key yet, `highest` is -inf, and -inf minus -inf would be NaN.
                base = tl.where(highest == float("-inf"), 0.0, highest)
                weight = tl.exp2(score - base[:, None])
                shrink = tl.exp2(largest - base)
                total = total * shrink + tl.sum(weight, 1)
                value = tl.load(values + at, mask=mask, other=0.0)
                added = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
                mixed = mixed * shrink[:, None] + added
                largest = highest
        if OF_PARTS:
            partial = out + (tl.program_id(0).to(tl.int64) * KV_HEADS + kv_head) * (PAIRS * (DIM + 2))
            within_tile = tl.arange(0, PAIRS)
            mixed_at = within_tile[:, None] * DIM + column[None, :]
            tl.store(partial + mixed_at, mixed, mask=inside[:, None] & within[None, :])
            tl.store(partial + PAIRS * DIM + within_tile, largest)
            tl.store(partial + PAIRS * (DIM + 1) + within_tile, total)
        else:
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + q_at, mixed.to(query.dtype), mask=inside[:, None] & within[None, :])


def launch(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor
) -> Tensor:
    """See `lopa_ray.kernels.slot_attention`."""
    q = q.contiguous()
    out = torch.empty_like(q)
    attend(q, k, v, slots, layer, tiles, stops, out)
    return out


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    layer: int,
    tiles: Tensor,
    stops: Tensor,
    out: Tensor,
    *,
    of_parts: bool = False,
) -> None:
    """Write rows of `out` [R, H, E] for tiles, with contiguous q. With `of_parts`, `tiles` are parts, and `out` fp32
    gets their results (see `partials_size`)."""
    if k.stride() != v.stride() or k.stride()[1:] != (k.shape[2], 1):
        k, v = k.contiguous(), v.contiguous()
    _, heads, dim = q.shape
    _, layers, _, kv_heads, capacity, _ = slots.shape
    given = constants(heads // kv_heads, kv_heads, dim, of_parts=of_parts) | options(dim, q.dtype)
    tensors = q, k, v, slots, out, tiles, stops
    scale = dim**-0.5 * math.log2(math.e)  # the kernel uses exp2 in place of exp
    _slot_attention[(tiles.shape[0], kv_heads)](
        *tensors, layer, layers, capacity, k.stride(0), scale, **given
    )


def partials_size(parts: int, kv_heads: int, dim: int) -> int:
    """The number of fp32 values that the kernel writes for so many parts: for each part and KV head the unnormalised
    output of each pair [TILE_ROWS, E], the pairs' largest scores [TILE_ROWS] and sums of weights [TILE_ROWS]."""
    return parts * kv_heads * TILE_ROWS * (dim + 2)


def constants(group: int, kv_heads: int, dim: int, *, of_parts: bool) -> dict[str, int]:
    return {
        "GROUP": group,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "ALIGN": math.gcd(dim, 16),
        "COLUMNS": PART_COLUMNS if of_parts else TILE_COLUMNS,
        "OF_PARTS": of_parts,
        "DIM_BLOCK": max(16, triton.next_power_of_2(dim)),
    }


def options(dim: int, dtype: torch.dtype) -> dict[str, int]:
    """Keys per block, warps and stages that fit the registers and the shared memory of an SM, from sm_80 on."""
    if dtype == torch.float32:  # fp32 products do not use tensor cores
        return {"KEY_BLOCK": 16, "num_warps": 8, "num_stages": 1 if dim > 128 else 2}
    if dim > 128:
        return {"KEY_BLOCK": 32, "num_warps": 8, "num_stages": 2}
    return {"KEY_BLOCK": 64, "num_warps": 4, "num_stages": 3}
