"""A small step that an attention backend computes, beside the formula: what every backend is held against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lopa_ray.execution.attention import AttentionBackend
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.model.config import ModelConfig

CAPACITY = 64

LANES = (
    Lane(0, 21, np.zeros(5, np.int64), ((26, 26),)),
    Lane(1, 0, np.zeros(7, np.int64), ((4, 4), (7, 7))),
    Lane(0, 21, np.zeros(9, np.int64), ((24, 24), (30, 40))),
)
"""Behind a cached prefix; without one, in two segments; and in the middle of what is cached."""


def try_attention(
    backend: AttentionBackend,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    lanes: tuple[Lane, ...] = LANES,
    capacity: int = CAPACITY,
) -> tuple[Tensor, Tensor]:
    """What a backend computes of normally distributed numbers, and the formula in fp32: [rows, H, E] each."""
    draw = torch.Generator().manual_seed(0)
    slots = max(lane.slot for lane in lanes) + 1
    cache = KVCache(replace(config, num_layers=2), slots, capacity, dtype, device)
    cache.data.copy_(torch.randn(cache.data.shape, generator=draw))
    options = PackingOptions(
        capacity=capacity,
        heads_per_kv_head=config.num_heads // config.num_kv_heads,
        vocab_size=1,
        mask_token_id=-1,
        eos_token_id=0,
        shift=0,
        fuse_greedy=True,
        bucket=backend.bucket,
    )
    packing = Packing(lanes, (), options)
    rows, heads = packing.rows_bucket, (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    q, k, v = (torch.randn(rows, h, config.head_dim, generator=draw).to(device, dtype) for h in heads)
    with torch.inference_mode():
        wanted = formula(packing, cache, q, k, v)
        found = backend.bind(cache, packing, packing.to_device(device))(1, q, k, v)
    return found[: packing.num_rows], wanted


def formula(packing: Packing, cache: KVCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every row over what it sees, in fp32: [rows, H, E]."""
    out = torch.empty(packing.num_rows, *q.shape[1:], device=q.device)
    for lane, first in zip(packing.lanes, packing.first_rows.tolist(), strict=True):
        keys, values = cache.data[lane.slot, 1].clone()
        rows = slice(first, first + len(lane.canvas))
        keys[:, lane.start : lane.stop] = k[rows].transpose(0, 1)
        values[:, lane.start : lane.stop] = v[rows].transpose(0, 1)
        begin = first
        for count, seen in lane.runs():
            of_run = slice(begin, begin + count)
            out[of_run] = attention_formula(q[of_run], keys[:, :seen], values[:, :seen])
            begin += count
    return out


def attention_formula(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Of q [T, H, E] over keys and values [K, L, E], in fp32: [T, H, E]."""
    groups = q.shape[1] // keys.shape[0]
    k, v = (x.float().repeat_interleave(groups, dim=0) for x in (keys, values))
    weights = torch.einsum("the,hle->htl", q.float(), k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("htl,hle->the", weights, v)
