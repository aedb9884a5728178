"""Attention of many lanes in few calls, with masks: for CPUs, where the bits of a row may depend on other lanes.

Shape suffixes: R packed rows, B slots of a call, T rows of each slot, H query heads, K KV heads, L keys, E head dim, C
positions of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lopa_ray.execution.attention import SDPA_ATTENTION, LaneAttention, reads_no_cache
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.padding import few_rows
from lopa_ray.kernels.sdpa import batched_sdpa
from lopa_ray.model.transformer import AttentionFn

MAX_ROWS = 127
"""Rows of a call with several lanes at most. With more, what is masked costs more than calls."""

MAX_PADDING = 256
"""Positions by which the keys of the slots of one call may differ at most."""


class PackedLane(NamedTuple):
    lane: Lane
    rows: slice  # of the R packed rows
    reach: int  # the end (exclusive) of what its rows see

    @property
    def num_rows(self) -> int:
        return len(self.lane.canvas)


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    """One call for all lanes of a slot, over its prefix and the fresh keys of all of them, which are not written to the
    slot. Consecutive slots with one lane each share a call, over the slots: there lanes write their keys, as those of
    `lanes` do. Long lanes are left to `lanes`."""

    lanes: LaneAttention = SDPA_ATTENTION
    bucket: Callable[[int], int] = few_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        if not cache.data.is_cpu:
            raise RuntimeError("masks are made on the CPU")
        ends, stops = packing.first_rows[1:], columns.stops.numpy()
        lanes = [
            PackedLane(lane, slice(first, end), int(stops[first:end].max()))
            for lane, first, end in zip(packing.lanes, packing.first_rows, ends, strict=False)
            if first < end
        ]
        is_alone = [lane.num_rows > MAX_ROWS or reads_no_cache(cache, lane.lane) for lane in lanes]
        long = list(compress(lanes, is_alone))
        self.lanes.clear(cache, [lane for lane, _, _ in long])
        short = parts(list(compress(lanes, map(not_, is_alone))))
        calls = [masked_call(cache, columns, part, packing.options.heads_per_kv_head) for part in short]
        if len(calls) == 1 and calls[0].rows == slice(0, packing.rows_bucket):
            return calls[0]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = torch.zeros_like(q)
            for call in calls:
                mixed[call.rows] = call(layer, q[call.rows], k[call.rows], v[call.rows])
            for lane, rows, _ in long:
                mixed[rows] = torch.cat(self.lanes.attend_lane(cache, lane, layer, q[rows], k[rows], v[rows]))
            return mixed

        return attend


@dataclass(frozen=True, slots=True, eq=False)
class MaskedCall:
    """A call per layer for one lane in each of B slots, or for several lanes of one slot: B x T of the packed rows."""

    rows: slice | Tensor
    keys: tuple[Tensor, ...]
    """Per layer [B, K, L, E]: what the rows see in the slots."""
    values: tuple[Tensor, ...]
    mask: Tensor | None
    """What is added to scores, 0 or -inf, [B, 1, H / K x T, keys] in the cache's dtype; None: rows see all keys."""
    written: _Written | None
    """Where the rows' own keys are written; None: they follow what is seen in the slot."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention of the call's rows in a layer: q [B x T, H, E], k and v [B x T, K, E] → [B x T, H, E], in the
        cache's dtype."""
        keys, values = self.keys[layer], self.values[layer]
        if self.written is not None:
            self.written.keys[layer][self.written.at] = k
            self.written.values[layer][self.written.at] = v
        else:
            keys = torch.cat((keys, k.transpose(0, 1)[None]), 2)
            values = torch.cat((values, v.transpose(0, 1)[None]), 2)
        return batched_sdpa(q.unflatten(0, (len(keys), -1)), keys, values, mask=self.mask).flatten(0, 1)


_Places = tuple[Tensor, Tensor] | tuple[int, slice]  # the slot among the B, and the position, of each row


class _Written(NamedTuple):
    keys: tuple[Tensor, ...]  # per layer [B, C, K, E]
    values: tuple[Tensor, ...]
    at: _Places


def masked_call(
    cache: KVCache, columns: StepColumns[Tensor], lanes: Sequence[PackedLane], heads_per_kv_head: int
) -> MaskedCall:
    """The call of lanes that `parts` has put together. Slots get zeros where it reads and nothing is committed. Columns
    are on the CPU: int64 [R]."""
    rows = np.concatenate([np.arange(lane.rows.start, lane.rows.stop) for lane in lanes])
    positions, stops = columns.positions.numpy()[rows], columns.stops.numpy()[rows, None]
    first, counts = lanes[0].lane, [lane.num_rows for lane in lanes]
    lane_of_row = np.repeat(np.arange(len(lanes)), counts)
    slots = cache.data[first.slot : lanes[-1].lane.slot + 1]
    written = None
    if len(lanes) > len(slots):
        own_stops = np.array([lane.lane.stop for lane in lanes])[lane_of_row, None]
        length = max(lane.reach if lane.reach > lane.lane.stop else first.start for lane in lanes)
        cached = np.arange(length)
        sees_cached = (cached < stops) & ((cached < first.start) | (cached >= own_stops))
        sees_fresh = (lane_of_row == lane_of_row[:, None]) & (positions < stops)
        sees = np.concatenate((sees_cached, sees_fresh), axis=1)[None]
        cache.clear_scratch(first.slot, range(first.start, length))
    else:
        length = max(lane.reach for lane in lanes)
        sees = (np.arange(length) < stops).reshape(len(lanes), -1, length)
        at: _Places = torch.from_numpy(lane_of_row), torch.from_numpy(positions)
        if len(lanes) == 1:  # a copy takes less time than an index
            at = 0, slice(first.start, first.stop)
        by_position = slots.transpose(3, 4)
        written = _Written(by_position[:, :, 0].unbind(1), by_position[:, :, 1].unbind(1), at)
        for lane in lanes:
            cache.clear_scratch(lane.lane.slot, range(lane.lane.stop, length))
    mask = None
    if not sees.all():
        mask = torch.zeros(sees.shape, dtype=cache.data.dtype)
        mask.masked_fill_(torch.from_numpy(~sees), -torch.inf)
        mask = mask.repeat(1, heads_per_kv_head, 1)[:, None]
    are_together = rows[-1] - rows[0] + 1 == len(rows) and bool((np.diff(rows) > 0).all())
    where = slice(int(rows[0]), int(rows[-1]) + 1) if are_together else torch.from_numpy(rows)
    keys, values = (slots[:, :, of, :, :length].unbind(1) for of in (0, 1))
    return MaskedCall(where, keys, values, mask, written)


def parts(lanes: Sequence[PackedLane]) -> list[list[PackedLane]]:
    """The lanes of each call."""
    of_slots = _runs(
        lanes,
        lambda part, lane: (
            lane.lane.slot == part[0].lane.slot and sum(x.num_rows for x in (*part, lane)) <= MAX_ROWS
        ),
    )
    alone = sorted((part[0] for part in of_slots if len(part) == 1), key=lambda x: (x.num_rows, x.lane.slot))
    together = _runs(
        alone,
        lambda part, lane: (
            lane.lane.slot == part[-1].lane.slot + 1
            and lane.num_rows == part[0].num_rows
            and lane.num_rows * (len(part) + 1) <= MAX_ROWS
            and abs(lane.reach - part[0].reach) <= MAX_PADDING
        ),
    )
    return [part for part in of_slots if len(part) > 1] + together


def _runs(
    lanes: Iterable[PackedLane], fits: Callable[[list[PackedLane], PackedLane], bool]
) -> list[list[PackedLane]]:
    """Runs of lanes, of which each fits behind those before it."""
    runs: list[list[PackedLane]] = []
    for lane in lanes:
        if runs and fits(runs[-1], lane):
            runs[-1].append(lane)
        else:
            runs.append([lane])
    return runs
