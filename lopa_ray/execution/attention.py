"""Attention of packed branches over the slots of a `KVCache`.

Each branch ("lane") writes its window's keys and values behind its prefix in the slot and
attends to that view: no prefix is copied and no mask is built. Block-causal attention is
one call of a kernel per segment, each over exactly the positions that it sees. A row's result
depends on its own segment alone, so with torch's kernel it is, in fp32 on CPU, bitwise the same whatever
else is in the batch; a finished block gets the same K/V on every branch of a block-causal window.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim, P kept positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.attention_kernels import Kernel
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.protocol.plan import Segment, Spans


@dataclass(frozen=True, slots=True)
class Lane:
    """One branch in a packed forward: rows for positions [start, start + len(ids)) of a slot."""

    slot: int
    start: int
    ids: list[int]
    segments: tuple[Segment, ...]
    to_stage: Spans = ()

    @property
    def stop(self) -> int:
        """End (exclusive) of the lane's positions."""
        return self.start + len(self.ids)


class SlotAttention:
    """The `AttentionFn` of a packed forward; also collects the K/V that lanes want kept."""

    def __init__(self, cache: KVCache, lanes: list[Lane], kernel: Kernel) -> None:
        self._kernel = kernel
        self._cache = cache
        self._lanes = lanes
        self.staged: list[Tensor | None] = [
            cache.payload(sum(map(len, lane.to_stage))) if lane.to_stage else None for lane in lanes
        ]
        """Per lane a payload; its boundary row is left to the caller."""
        self._staged_kv = [None if payload is None else cache.split(payload)[0] for payload in self.staged]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [R, H, E] over each lane's slot, after writing k, v [R, K, E] there; rows beyond the lanes get 0."""
        out = torch.zeros_like(q)
        row = 0
        for lane, kept in zip(self._lanes, self._staged_kv, strict=True):
            keys, values = self._cache.window(lane.slot, layer)
            rows = slice(row, row + len(lane.ids))
            keys[:, lane.start : lane.stop] = k[rows].transpose(0, 1)
            values[:, lane.start : lane.stop] = v[rows].transpose(0, 1)
            if kept is not None:
                self._stage(kept[layer], keys, values, lane.to_stage)
            begin = row
            for stop, kv_stop in lane.segments:
                end = row + stop - lane.start
                out[begin:end] = self._kernel(q[begin:end], keys[:, :kv_stop], values[:, :kv_stop])
                begin = end
            row = rows.stop
        return out

    @staticmethod
    def _stage(kept: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> None:
        at = 0
        for span in spans:
            kept[0, :, at : at + len(span)] = keys[:, span.start : span.stop]
            kept[1, :, at : at + len(span)] = values[:, span.start : span.stop]
            at += len(span)
