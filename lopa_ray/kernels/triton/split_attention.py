"""Triton kernels of `split_attention`: the kernel of `slot_attention` for tiles and for parts, and one that merges
parts. Tiles and parts have a variant each: one for both would spill registers, and could round a tile differently."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels import slot_attention as slot
from lopa_ray.kernels.triton.slot_attention import attend, partials_size

COLUMNS, PART_COLUMNS, PAIRS = map(tl.constexpr, (slot.TILE_COLUMNS, slot.PART_COLUMNS, slot.TILE_ROWS))

SLICE = tl.constexpr(8)
"""Pairs that a program merges at a time. The slices of a tile are divided among the programs of its parts."""


@triton.jit
def _merge_parts(
    partials,
    parts,
    out,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):
    work = tl.program_id(0)
    kv_head = tl.program_id(1)
    tile = parts + work * PART_COLUMNS
    first = tl.load(tile + 2)
    rows = tl.load(tile + 3).to(tl.int32)
    if rows > 0:
        first_pair = tl.load(tile + 4).to(tl.int32)
        part = tl.load(tile + COLUMNS).to(tl.int32)
        num_parts = tl.load(tile + COLUMNS + 1).to(tl.int32)
        column = tl.arange(0, DIM_BLOCK)
        within = column < DIM
        first_part = partials + ((work - part).to(tl.int64) * KV_HEADS + kv_head) * (PAIRS * (DIM + 2))
        for slice in range(part, PAIRS // SLICE, num_parts):
            within_tile = slice * SLICE + tl.arange(0, SLICE)
            pair = first_pair + within_tile
            mask = (pair < rows * GROUP)[:, None] & within[None, :]
            largest = tl.full((SLICE,), float("-inf"), tl.float32)
            total = tl.zeros((SLICE,), tl.float32)
            mixed = tl.zeros((SLICE, DIM_BLOCK), tl.float32)
            # Unrolled, because then the loads of several parts are on their way together.
            partial = first_part
            for _ in tl.range(0, num_parts, loop_unroll_factor=4):
                added = tl.load(partial + within_tile[:, None] * DIM + column[None, :], mask=mask, other=0.0)
                part_largest = tl.load(partial + PAIRS * DIM + within_tile)
                part_total = tl.load(partial + PAIRS * (DIM + 1) + within_tile)
                highest = tl.maximum(largest, part_largest)
                # As in the kernel of the parts, for pairs that have seen no key yet.
                base = tl.where(highest == float("-inf"), 0.0, highest)
                shrink = tl.exp2(largest - base)
                weight = tl.exp2(part_largest - base)
                total = total * shrink + part_total * weight
                mixed = mixed * shrink[:, None] + added * weight[:, None]
                largest = highest
                partial += KV_HEADS * PAIRS * (DIM + 2)
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
            head = kv_head * GROUP + pair % GROUP
            out_at = ((first + pair // GROUP) * (KV_HEADS * GROUP) + head)[:, None] * DIM + column[None, :]
            tl.store(out + out_at, mixed.to(out.dtype.element_ty), mask=mask)


def launch(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor, parts: Tensor
) -> Tensor:
    """See `lopa_ray.kernels.slot_attention`."""
    _, heads, dim = q.shape
    kv_heads, num_parts = slots.shape[3], parts.shape[0]
    q = q.contiguous()
    out = torch.empty_like(q)
    partials = q.new_empty(partials_size(num_parts, kv_heads, dim), dtype=torch.float32)
    attend(q, k, v, slots, layer, parts, stops, partials, of_parts=True)
    attend(q, k, v, slots, layer, tiles, stops, out)
    shape = heads // kv_heads, kv_heads, dim, max(16, triton.next_power_of_2(dim))
    _merge_parts[(num_parts, kv_heads)](partials, parts, out, *shape)
    return out
