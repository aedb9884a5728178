"""Triton kernel of `rotate_qkv`: a program processes `HEAD_BLOCK` heads of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

HEAD_BLOCK = tl.constexpr(8)


@triton.jit
def _rounded_rotation(a, a_by, b, b_by):
    """a · a_by + b · b_by, rounded after each operation, as torch rounds in half precision."""
    dtype = a.dtype
    left = (a.to(tl.float32) * a_by.to(tl.float32)).to(dtype)
    right = (b.to(tl.float32) * b_by.to(tl.float32)).to(dtype)
    return (left.to(tl.float32) + right.to(tl.float32)).to(dtype)


@triton.jit(do_not_specialize=["rows"])  # otherwise compiled again for some values of `rows`
def _rotate_qkv(
    qkv,
    cos,
    sin,
    q_weight,
    k_weight,
    q_out,
    kv_out,
    rows,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    NORM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (column < HALF)
    is_q, is_v = head < HEADS, head >= HEADS + KV_HEADS
    # A column stands for two dims: a pair that is rotated, or two dims after all pairs.
    PAIRS: tl.constexpr = ROTARY_DIM // 2
    is_pair = column < PAIRS
    low_dim = tl.where(is_pair, column, column + PAIRS)
    high_dim = tl.where(is_pair, column + PAIRS, column + HALF)
    at = (row * (HEADS + 2 * KV_HEADS) + head) * DIM
    low = tl.load(qkv + at + low_dim, mask=inside, other=0.0)
    high = tl.load(qkv + at + high_dim, mask=inside, other=0.0)
    plain_low, plain_high = low, high
    within = column < HALF
    if NORM:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        squares = tl.sum(wide_low * wide_low, 1) + tl.sum(wide_high * wide_high, 1)
        scale = tl.rsqrt(squares / DIM + eps)[:, None]
        q_low = tl.load(q_weight + low_dim, mask=within, other=0.0)
        q_high = tl.load(q_weight + high_dim, mask=within, other=0.0)
        k_low = tl.load(k_weight + low_dim, mask=within, other=0.0)
        k_high = tl.load(k_weight + high_dim, mask=within, other=0.0)
        low = tl.where(is_q, q_low, k_low) * (wide_low * scale).to(low.dtype)
        high = tl.where(is_q, q_high, k_high) * (wide_high * scale).to(high.dtype)
    angle = row * ROTARY_DIM + column
    cos_low = tl.load(cos + angle, mask=is_pair, other=1.0)
    cos_high = tl.load(cos + angle + PAIRS, mask=is_pair, other=1.0)
    sin_low = tl.load(sin + angle, mask=is_pair, other=0.0)
    sin_high = tl.load(sin + angle + PAIRS, mask=is_pair, other=0.0)
    rotated_low = tl.where(is_v, plain_low, _rounded_rotation(low, cos_low, -high, sin_low))
    rotated_high = tl.where(is_v, plain_high, _rounded_rotation(high, cos_high, low, sin_high))
    q_at = (row * HEADS + head) * DIM
    tl.store(q_out + q_at + low_dim, rotated_low, mask=inside & is_q)
    tl.store(q_out + q_at + high_dim, rotated_high, mask=inside & is_q)
    part = tl.where(is_v, rows, 0) + row
    kv_head = tl.where(is_v, head - HEADS - KV_HEADS, head - HEADS)
    kv_at = (part * KV_HEADS + kv_head) * DIM
    tl.store(kv_out + kv_at + low_dim, rotated_low, mask=inside & (head >= HEADS))
    tl.store(kv_out + kv_at + high_dim, rotated_high, mask=inside & (head >= HEADS))


def launch(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv: Tensor,
) -> Tensor:
    """See `lopa_ray.kernels.rotary`."""
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    rows, heads, dim = qkv.shape
    q = qkv.new_empty(rows, num_heads, dim)
    norm = q_weight is not None and k_weight is not None
    _rotate_qkv[(rows, triton.cdiv(heads, HEAD_BLOCK.value))](
        *(qkv, cos, sin, q_weight if norm else qkv, k_weight if norm else qkv, q, kv, rows, eps),
        HEADS=num_heads,
        KV_HEADS=kv.shape[2],
        DIM=dim,
        ROTARY_DIM=cos.shape[-1],
        NORM=norm,
        HALF_BLOCK=triton.next_power_of_2(dim // 2),
    )
    return q
