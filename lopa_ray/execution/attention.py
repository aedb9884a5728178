"""Attention of packed lanes over the slots of a `KVCache`. A backend is bound to each step, and called once per layer.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from lopa_ray.execution.kv_cache import ALIGN_ROWS, KVCache
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.operators import triton_failure
from lopa_ray.kernels.padding import bucket_rows, padded_rows
from lopa_ray.kernels.sdpa import causal_sdpa, sdpa
from lopa_ray.kernels.slot_attention import slot_attention
from lopa_ray.model.transformer import AttentionFn

LaneKernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Unmasked softmax attention, scaled by E ** -0.5, of q [T, H, E] over keys and values [K, L, E]; returns [T, H, E].

Keys and values may be views of a cache. Query head h reads KV head h * K // H.
"""

CausalKernel = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""The same of rows of which the first sees so many keys of a slot [K, C, E], and each further row one more."""


class AttentionBackend(Protocol):
    @property
    def bucket(self) -> Callable[[int], int]:
        """A function from the number of rows of a step to the number of rows of its forward, with padding."""

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """The attention function of one step, of q [R, H, E], k and v [R, K, E] of one layer in the cache's dtype.
        `columns` are on the device. Raises RuntimeError if the backend cannot run here."""


@dataclass(frozen=True, slots=True)
class LaneAttention:
    """One kernel call per lane and segment, and one for the causal rows of a lane, or for each of them. A lane writes
    its keys and values after its prefix in the slot and attends to that view, so no prefix is copied and no mask is
    built. The result of a row depends on its own segment only. With torch's kernel in fp32 on CPU it is therefore
    bitwise independent of the rest of the batch, and a finished block has the same K/V on every branch of a
    block-causal window."""

    kernel: LaneKernel
    causal_kernel: CausalKernel | None = None
    """Keys that it reads after its rows' keys are zero, or of the same request. None: `kernel`, row by row."""
    bucket: Callable[[int], int] = padded_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        self.clear(cache, packing.lanes)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = []
            for lane, row in zip(packing.lanes, packing.first_rows, strict=False):
                rows = slice(row, row + len(lane.canvas))
                mixed += self.attend_lane(cache, lane, layer, q[rows], k[rows], v[rows])
            return torch.cat((*mixed, torch.zeros_like(q[packing.num_rows :])))

        return attend

    def clear(self, cache: KVCache, lanes: Sequence[Lane]) -> None:
        """To be called before the forward: another request may have left numbers that are not finite behind causal
        rows."""
        for lane in lanes:
            if self.causal_kernel is not None and lane.causal_rows:
                cache.clear_scratch(lane.slot, range(lane.stop, -(-lane.stop // ALIGN_ROWS) * ALIGN_ROWS))

    def attend_lane(
        self, cache: KVCache, lane: Lane, layer: int, q: Tensor, k: Tensor, v: Tensor
    ) -> list[Tensor]:
        """The attention of a lane's rows, q [T, H, E], k and v [T, K, E], in parts that together are [T, H, E], all in
        the cache's dtype."""
        if reads_no_cache(cache, lane):
            # Copies have the strides of a slot, also with one head.
            dense = torch.contiguous_format
            keys, values = (x.transpose(0, 1).clone(memory_format=dense) for x in (k, v))
        else:
            keys, values = cache.layer_views(lane.slot, layer)
            keys[:, lane.start : lane.stop] = k.transpose(0, 1)
            values[:, lane.start : lane.stop] = v.transpose(0, 1)
        mixed, begin, runs = [], 0, lane.runs()
        if self.causal_kernel is not None and (causal := lane.causal_rows):
            begin, runs = causal, runs[causal:]
            mixed.append(self.causal_kernel(q[:causal], keys, values, lane.start + 1))
        for count, seen in runs:
            mixed.append(self.kernel(q[begin : begin + count], keys[:, :seen], values[:, :seen]))
            begin += count
        return mixed


def reads_no_cache(cache: KVCache, lane: Lane) -> bool:
    """Whether a lane computes all that it sees, although positions are cached: it must not write over these."""
    sees_itself = not lane.start and all(seen <= lane.stop for _, seen in lane.segments)
    return sees_itself and not lane.causal_rows and bool(cache.committed[lane.slot])


SDPA_ATTENTION = LaneAttention(sdpa, causal_sdpa)


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """One call of `slot_attention` for all lanes. Fresh keys and values are not written to the slots. Its calls are the
    same in all steps of so many rows, so a CUDA graph may have them."""

    needs_triton: bool = field(default=False, kw_only=True)
    """Whether `bind` fails where Triton does not work. Otherwise the reference implementation is used there."""
    bucket: Callable[[int], int] = field(default=bucket_rows, kw_only=True)

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        return self.bind_rows(cache, packing.rows_bucket, columns)

    def fits(self, packing: Packing) -> bool:
        """Whether `bind_rows` computes this step."""
        return True

    def bind_rows(self, cache: KVCache, rows: int, columns: StepColumns[Tensor]) -> AttentionFn:
        """The attention function of every step that fits and has `rows` rows, with its padding: q [R, H, E], k and v
        [R, K, E] → [R, H, E], in the model's dtype. All of these steps have `columns` at the same addresses. Raises
        RuntimeError if the backend cannot run here."""
        if self.needs_triton and (reason := triton_failure()) is not None:
            raise RuntimeError(f"Triton does not work here ({reason})")

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return slot_attention(q, k, v, cache.data, layer, columns.tiles, columns.stops, columns.parts)

        return attend
