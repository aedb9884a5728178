"""AttentionTrial: the attention of one layer of an artificial step, by a backend and by the reference formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lopa_ray.execution.attention import AttentionBackend
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.protocol.vocabulary import Vocabulary

SMALL_STEP = (
    Lane(0, 21, np.zeros(5, np.int64), ((26, 26),)),
    Lane(0, 21, np.zeros(9, np.int64), ((30, 30),)),
    Lane(1, 0, np.zeros(7, np.int64), ((7, 7),)),
    Lane(2, 12, np.zeros(7, np.int64), ((19, 19),)),
)
"""Two lanes of a slot after its cached prefix, and lanes of as many rows of two more slots, one without a prefix."""


def branches_of_a_step(capacity: int) -> tuple[Lane, ...]:
    """Eight lanes of 64 rows after a prefix of 512 positions, or of fewer if slots have only `capacity` positions."""
    start = max(0, min(512, capacity - 64))
    return tuple(Lane(0, start, np.zeros(64, np.int64), ((start + 64, start + 64),)) for _ in range(8))


class AttentionTrial:
    def __init__(
        self,
        backend: AttentionBackend,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        lanes: tuple[Lane, ...],
        capacity: int = 0,
    ) -> None:
        """Slots have `capacity` positions, or more if the lanes see more."""
        draw = torch.Generator().manual_seed(0)
        seen = max(seen for lane in lanes for _, seen in lane.segments)
        slots, capacity = max(lane.slot for lane in lanes) + 1, max(capacity, seen)
        self._cache = KVCache(replace(config, num_layers=2), slots, capacity, dtype, device)
        in_use = self._cache.data[:, 1, :, :, :seen]
        in_use.copy_(torch.randn(in_use.shape, generator=draw))
        for slot in range(slots):
            self._cache.mark_committed(slot, (range(seen),))
        options = PackingOptions(
            capacity=capacity,
            heads_per_kv_head=config.num_heads // config.num_kv_heads,
            vocabulary=Vocabulary(1, mask_token_id=-1, eos_token_id=0),
            bucket=backend.bucket,
        )
        self._packing = Packing(lanes, (), options)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        rows = self._packing.rows_bucket
        self._qkv = [
            torch.randn(rows, count, config.head_dim, generator=draw).to(device, dtype) for count in heads
        ]
        self._attend = backend.bind(self._cache, self._packing, self._packing.to_device(device))

    @torch.inference_mode()
    def run(self) -> Tensor:
        """[rows, H, E] in the dtype of the K/V."""
        return self._attend(1, *self._qkv)[: self._packing.num_rows]

    @torch.inference_mode()
    def formula(self) -> Tensor:
        """The result of the reference formula, in fp32: [rows, H, E]."""
        q, k, v = self._qkv
        out = torch.empty(self._packing.num_rows, *q.shape[1:], device=q.device)
        for lane, first in zip(self._packing.lanes, self._packing.first_rows, strict=False):
            keys, values = self._cache.data[lane.slot, 1].clone()
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
    """Unmasked softmax attention of q [T, H, E] over keys and values [K, L, E], in fp32: [T, H, E]."""
    groups = q.shape[1] // keys.shape[0]
    k, v = (x.float().repeat_interleave(groups, dim=0) for x in (keys, values))
    weights = torch.einsum("the,hle->htl", q.float(), k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("htl,hle->the", weights, v)
