"""Triton kernel of `commit_rows`: a program copies one row of the keys or the values of one layer."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


# These arguments change from step to step. Without specialization they do not cause new compilations.
@triton.jit(do_not_specialize=["staged_rows"], do_not_specialize_on_alignment=["table"])
def _commit_rows(
    slots,
    staged,
    table,
    staged_rows,
    capacity,
    PLANES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64)
    row = tl.load(table + entry * 3)
    slot = tl.load(table + entry * 3 + 1)
    position = tl.load(table + entry * 3 + 2)
    element = tl.arange(0, BLOCK)
    inside = element < KV_HEADS * DIM
    value = tl.load(staged + (plane * staged_rows + row) * (KV_HEADS * DIM) + element, mask=inside)
    head = (slot * PLANES + plane) * KV_HEADS + element // DIM
    tl.store(slots + (head * capacity + position) * DIM + element % DIM, value, mask=inside)


def launch(slots: Tensor, staged: Tensor, table: Tensor) -> None:
    """See `lopa_ray.kernels.commit_rows`."""
    _, layers, _, kv_heads, capacity, dim = slots.shape
    _commit_rows[(table.shape[0], 2 * layers)](
        slots,
        staged.contiguous(),
        table.contiguous(),
        staged.shape[2],
        capacity,
        PLANES=2 * layers,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK=triton.next_power_of_2(kv_heads * dim),
    )
