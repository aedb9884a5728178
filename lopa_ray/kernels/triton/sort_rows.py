"""Triton kernel of `sort_rows`: a program finds the rows of one expert, and places them after the rows of experts
before. Each reads all choices twice: a few hundred KiB, which caches hold, in the same order in every run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["size", "first", "own"])
def _sort_rows(
    chosen, sources, experts, ends, places, size, first, own, COUNT: tl.constexpr, PER_TOKEN: tl.constexpr
):
    expert = tl.program_id(0)
    before = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, size, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        asked = tl.load(chosen + index, mask=index < size, other=0).to(tl.int32)
        key = (asked - first + COUNT) % COUNT
        before += ((key < expert) & (index < size)).to(tl.int32)
    end = tl.sum(before, 0)
    for begin in range(0, size, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        asked = tl.load(chosen + index, mask=index < size, other=0).to(tl.int32)
        key = (asked - first + COUNT) % COUNT
        is_own = (key == expert) & (index < size)
        place = end + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(sources + place, (index // PER_TOKEN).to(tl.int64), mask=is_own)
        tl.store(experts + place, tl.zeros((BLOCK,), tl.int64) + expert, mask=is_own)
        tl.store(places + index, place.to(tl.int64), mask=is_own)
        end += tl.sum(is_own.to(tl.int32), 0)
    if expert < own:
        tl.store(ends + expert, end)


def launch(chosen: Tensor, first: int, own: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `lopa_ray.kernels.sort_rows`."""
    chosen = chosen.contiguous()
    places = torch.empty_like(chosen)
    sources, experts = chosen.new_empty(2, chosen.numel())
    ends = chosen.new_empty(own, dtype=torch.int32)
    _sort_rows[(count,)](
        chosen, sources, experts, ends, places, chosen.numel(), first, own, count, chosen.shape[1]
    )
    return sources, experts, ends, places
