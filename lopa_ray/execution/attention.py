"""Attention of packed branches over the slots of a `KVCache`.

Each sequence (a branch of a request) writes its window's keys and values behind its prefix in the slot and
attends to that view: no prefix is copied and no mask is built. Block-causal attention is
one call of a kernel per segment, each over exactly the positions that it sees. A row's result
depends on its own segment alone, so with torch's kernel it is, in fp32 on CPU, bitwise the same whatever
else is in the batch; a finished block gets the same K/V on every branch of a block-causal window.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim, P staged positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.attention_kernels import AttentionKernel
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.protocol.plan import Segment, Spans


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One of the sequences packed into a forward: rows for positions [start, start + len(ids)) of a slot."""

    slot: int
    start: int
    ids: list[int]
    segments: tuple[Segment, ...]
    to_stage: Spans = ()

    @property
    def stop(self) -> int:
        """End (exclusive) of the sequence's positions."""
        return self.start + len(self.ids)


class SlotAttention:
    """The `AttentionFn` of a packed forward; also collects the K/V that sequences stage."""

    def __init__(self, cache: KVCache, sequences: list[PackedSequence], kernel: AttentionKernel) -> None:
        self._kernel = kernel
        self._cache = cache
        self._sequences = sequences
        self.staged: list[Tensor | None] = [
            cache.empty_payload(sum(map(len, sequence.to_stage))) if sequence.to_stage else None
            for sequence in sequences
        ]
        """Per sequence a payload; its boundary row is left to the caller."""
        self._staged_kv = [
            None if payload is None else cache.split_payload(payload)[0] for payload in self.staged
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [R, H, E] over each sequence's slot, after writing k, v [R, K, E] there; rows beyond them get 0."""
        out = torch.zeros_like(q)
        row = 0
        for sequence, staged_kv in zip(self._sequences, self._staged_kv, strict=True):
            keys, values = self._cache.layer_views(sequence.slot, layer)
            rows = slice(row, row + len(sequence.ids))
            keys[:, sequence.start : sequence.stop] = k[rows].transpose(0, 1)
            values[:, sequence.start : sequence.stop] = v[rows].transpose(0, 1)
            if staged_kv is not None:
                self._stage(staged_kv[layer], keys, values, sequence.to_stage)
            begin = row
            for stop, kv_stop in sequence.segments:
                end = row + stop - sequence.start
                out[begin:end] = self._kernel(q[begin:end], keys[:, :kv_stop], values[:, :kv_stop])
                begin = end
            row = rows.stop
        return out

    @staticmethod
    def _stage(staged_kv: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> None:
        at = 0
        for span in spans:
            staged_kv[0, :, at : at + len(span)] = keys[:, span.start : span.stop]
            staged_kv[1, :, at : at + len(span)] = values[:, span.start : span.stop]
            at += len(span)
