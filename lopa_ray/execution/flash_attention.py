"""Attention of packed lanes by the package flash-attn: over the slots, then over the fresh rows; both are merged.

Steps with rows that do not see their whole lane, or see positions after it, use `slot_attention`. A test checks the
signatures of the published packages of versions 2, 3 and 4 (`tests/data/flash_attn.json`).

Shape suffixes: R packed rows, N lanes, H query heads, K KV heads, E head dim, S slots, C rows of a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.model.transformer import AttentionFn

OutputAndLSE = tuple[Tensor, Tensor]  # attention [R, H, E], and fp32 [H, R]


@dataclass(frozen=True, slots=True, eq=False)
class LaneTable:
    """The lanes of a step in the form that flash-attn takes; tensors are int32."""

    slots: Tensor  # [N]: the slot of each lane
    starts: Tensor  # [N]: number of cached positions before each lane
    first_rows: Tensor  # [N + 1]: the first row of each lane, then the end of the last lane
    cached_positions: Tensor  # [N + 1]: cumulative sums of `starts`, from 0 on
    longest: int  # maximum number of rows of a lane


def _attend_2(q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool) -> OutputAndLSE:
    from flash_attn import flash_attn_varlen_func

    rows, longest = lanes.first_rows, lanes.longest
    if in_slots:
        # Version 2 takes lengths as cumulative sums. A slot is passed as one page; pages have a multiple of 256 rows.
        out, lse, _ = flash_attn_varlen_func(
            q, keys, values, rows, lanes.cached_positions, longest, keys.shape[1],
            return_attn_probs=True, block_table=lanes.slots[:, None],
        )  # fmt: skip
    else:
        out, lse, _ = flash_attn_varlen_func(
            q, keys, values, rows, rows, longest, longest, return_attn_probs=True
        )
    return out, lse


def _attend_3(q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool) -> OutputAndLSE:
    from flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache

    rows, longest = lanes.first_rows, lanes.longest
    if in_slots:
        out, lse, *_ = flash_attn_with_kvcache(
            q, keys, values, cache_seqlens=lanes.starts, cache_batch_idx=lanes.slots, cu_seqlens_q=rows,
            max_seqlen_q=longest, num_splits=1, return_softmax_lse=True,
        )  # fmt: skip
    else:
        out, lse = flash_attn_varlen_func(
            q, keys, values, rows, rows, longest, longest, num_splits=1, return_attn_probs=True
        )
    return out, lse


def _attend_4(q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool) -> OutputAndLSE:
    from flash_attn.cute import flash_attn_varlen_func

    of_keys: dict[str, Any] = {"cu_seqlens_k": lanes.first_rows, "max_seqlen_k": lanes.longest}
    if in_slots:
        of_keys = {"seqused_k": lanes.starts, "page_table": lanes.slots[:, None]}
    out, lse = flash_attn_varlen_func(
        q, keys, values, cu_seqlens_q=lanes.first_rows, max_seqlen_q=lanes.longest, num_splits=1,
        return_lse=True, **of_keys,
    )  # fmt: skip
    return out, lse


VERSIONS: dict[int, Callable[..., OutputAndLSE]] = {4: _attend_4, 3: _attend_3, 2: _attend_2}
"""Version of flash-attn → its attention function, newest version first."""


@dataclass(frozen=True, slots=True)
class FlashAttention(PackedAttention):
    """Two calls of flash-attn per layer for all lanes. They do not split keys depending on the load (`num_splits`)."""

    version: int

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        if not self.fits(packing):
            return PackedAttention().bind(cache, packing, columns)
        return self._bind(cache, max(packing.longest_lane, packing.rows_bucket - packing.num_rows), columns)

    def fits(self, packing: Packing) -> bool:
        # Every row sees its whole lane and no position after it.
        return all(run == (len(lane.canvas), lane.stop) for lane in packing.lanes for run in lane.runs())

    def bind_rows(self, cache: KVCache, rows: int, columns: StepColumns[Tensor]) -> AttentionFn:
        return self._bind(cache, rows, columns)

    def _bind(self, cache: KVCache, longest: int, columns: StepColumns[Tensor]) -> AttentionFn:
        flash = VERSIONS[self.version]
        table = columns.lanes.to(torch.int32).t().contiguous()
        starts = table[1, :-1]
        cached_positions = F.pad(starts.cumsum(0, dtype=torch.int32), (1, 0))
        lanes = LaneTable(table[0, :-1], starts, table[2], cached_positions, 1 << (longest - 1).bit_length())

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # [S, K, C, E] → [S, C, K, E]
            keys, values = (cache.data[:, layer, at].transpose(1, 2) for at in (0, 1))
            cached, cached_lse = flash(q, keys, values, lanes, in_slots=True)
            fresh, fresh_lse = flash(q, k, v, lanes, in_slots=False)
            # For rows that see no cached position the log-sum-exp is inf or -inf, depending on the version.
            cached_lse = torch.where(cached_lse < torch.inf, cached_lse, -torch.inf)
            share = torch.sigmoid(cached_lse - fresh_lse).t()[:, :, None]
            merged = torch.where(share > 0, cached.float(), 0.0) * share + fresh.float() * (1 - share)
            return merged.to(q.dtype)

        return attend
