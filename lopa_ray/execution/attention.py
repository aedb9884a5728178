"""Attention of packed lanes over the slots of a `KVCache`: made anew for every step, called once per layer.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.packing import Packing, bucket_rows, padded_rows
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.operators import triton_works
from lopa_ray.kernels.slot_attention import slot_attention
from lopa_ray.model.transformer import AttentionFn

LaneKernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Unmasked softmax attention, scaled by E ** -0.5, of q [T, H, E] over keys and values [K, L, E], which may be views
of a cache; returns [T, H, E]. Query head h reads KV head h * K // H."""


class AttentionBackend(Protocol):
    """How a step's attention is computed."""

    @property
    def bucket(self) -> Callable[[int], int]:
        """How many rows a forward of so many rows has."""
        ...

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """The attention of one step.

        `columns` are the step's on the device, each of the shape and dtype that `StepColumns` says. The function takes
        q [R, H, E], k and v [R, K, E] of one layer in the cache's dtype, as `AttentionFn` says.

        Raises RuntimeError if the backend cannot run here.
        """
        ...


@dataclass(frozen=True, slots=True)
class LaneAttention:
    """A call of a kernel per lane and segment.

    A lane writes its keys and values behind its prefix in the slot and attends to that view: no prefix is copied and no
    mask is built. Block-causal attention is one call per segment, each over exactly the positions that it sees. A row's
    result depends on its own segment alone, so with torch's kernel it is, in fp32 on CPU, bitwise the same whatever
    else is in the batch; a finished block gets the same K/V on every branch of a block-causal window.
    """

    kernel: LaneKernel
    bucket: Callable[[int], int] = padded_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """See `AttentionBackend.bind`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = []
            for lane, row in zip(packing.lanes, packing.first_rows, strict=False):
                keys, values = cache.layer_views(lane.slot, layer)
                rows = slice(row, row + len(lane.canvas))
                keys[:, lane.start : lane.stop] = k[rows].transpose(0, 1)
                values[:, lane.start : lane.stop] = v[rows].transpose(0, 1)
                begin = row
                for count, seen in lane.runs():
                    end = begin + count
                    mixed.append(self.kernel(q[begin:end], keys[:, :seen], values[:, :seen]))
                    begin = end
            return torch.cat((*mixed, torch.zeros_like(q[packing.num_rows :])))

        return attend


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """One call for all lanes, by `slot_attention`. Fresh keys and values stay out of the slots."""

    needs_triton: bool = False
    """Fail where Triton does not work; elsewhere the reference computes it."""
    bucket: Callable[[int], int] = bucket_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """See `AttentionBackend.bind`. Raises RuntimeError where Triton has to work and does not."""
        if self.needs_triton and not triton_works():
            raise RuntimeError("Triton does not work here")

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return slot_attention(q, k, v, cache.data, layer, columns.tiles, columns.stops)

        return attend
