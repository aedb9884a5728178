"""Attention of packed lanes by the package flash-attn: over the slots, then over the fresh rows, and both merged.

It takes steps in which every lane sees all of itself and nothing behind it. Other steps (block-causal windows, windows
in the middle of what is cached) go to `slot_attention`. Written against the published packages of the versions 2, 3 and
4; `tests/data/flash_attn.json` records their signatures, and a test holds every call in this file against them.

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
from lopa_ray.execution.packing import Packing, bucket_rows
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.model.transformer import AttentionFn

OutputAndLSE = tuple[Tensor, Tensor]
"""Attention [R, H, E] and the log-sum-exp of its scores, fp32 [H, R]."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneTable:
    """Lanes as flash-attn takes them, int32."""

    slots: Tensor
    """[N]."""
    starts: Tensor
    """[N]: cached positions before the lane."""
    first_rows: Tensor
    """[N + 1], cumulative."""
    cached_positions: Tensor
    """[N + 1]: `starts`, cumulative."""
    longest: int
    """Rows of a lane, at most."""


def _attend_2(q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool) -> OutputAndLSE:
    from flash_attn import flash_attn_varlen_func

    rows, longest = lanes.first_rows, lanes.longest
    if in_slots:
        # It takes lengths as differences; a slot is a page, and pages have a multiple of 256 rows.
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
"""The newest first."""


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """Two calls of flash-attn per layer for all lanes. No call splits keys by load."""

    version: int
    bucket: Callable[[int], int] = bucket_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        """See `AttentionBackend.bind`."""
        if any(run != (len(lane.canvas), lane.stop) for lane in packing.lanes for run in lane.runs()):
            return PackedAttention().bind(cache, packing, columns)
        flash = VERSIONS[self.version]
        table = columns.lanes.to(torch.int32).t().contiguous()
        longest = max(packing.longest_lane, packing.rows_bucket - packing.num_rows)
        starts = table[1, :-1]
        cached_positions = F.pad(starts.cumsum(0, dtype=torch.int32), (1, 0))
        lanes = LaneTable(table[0, :-1], starts, table[2], cached_positions, 1 << (longest - 1).bit_length())

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # [S, K, C, E] → [S, C, K, E]
            keys, values = (cache.data[:, layer, at].transpose(1, 2) for at in (0, 1))
            cached, cached_lse = flash(q, keys, values, lanes, in_slots=True)
            fresh, fresh_lse = flash(q, k, v, lanes, in_slots=False)
            # Rows that see nothing in the slot have an infinity of either sign here, by version.
            cached_lse = torch.where(cached_lse < torch.inf, cached_lse, -torch.inf)
            share = torch.sigmoid(cached_lse - fresh_lse).t()[:, :, None]
            merged = torch.where(share > 0, cached.float(), 0.0) * share + fresh.float() * (1 - share)
            return merged.to(q.dtype)

        return attend
