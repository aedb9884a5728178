"""Attention of all lanes of a step in one call, over the cached positions of their slots and over their fresh rows.

A lane is a run of packed rows at consecutive positions: a branch of a request. The keys and values of a position come
from the lane itself if the lane has that position, and from the lane's slot otherwise. A row sees the positions below
its stop.

Lanes are divided into tiles. A tile is `TILE_ROWS` pairs of row and query head. Each program of the kernel computes one
tile for one KV head. Tiles begin at the lane's first row, and blocks of keys begin at the first key of the slot and at
the first key of the lane. So the results of a lane do not depend on the other lanes of the step.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim, T tiles, S slots, L layers, C rows of a slot.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from lopa_ray.kernels.operators import define
from lopa_ray.kernels.sdpa import sdpa

TILE_ROWS = 64
"""Number of pairs of row and query head, of one KV head, in a tile."""

TILE_COLUMNS = 5
"""Number of columns that describe a tile.

They are the slot, the position of the lane's first row, the index of that row, the number of the lane's rows (0: no
tile), and the index of the tile's first pair among the pairs of the lane.
"""


def slot_attention(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor
) -> Tensor:
    """Attention of q [R, H, E] over fresh k and v [R, K, E] and over slots [S, L, 2, K, C, E] → [R, H, E].

    `tiles` int64 [T, 5] describes the tiles, which together cover all rows (see `TILE_COLUMNS`). `stops` int64 [R] is
    the end (exclusive) of the positions that each row sees. The result of a row that sees no position is 0.
    """
    out: Tensor = _slot_attention(q, k, v, slots, layer, tiles, stops)
    return out


def _reference(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor
) -> Tensor:
    """One call of torch's kernel per lane and run of rows with the same stop."""
    out = torch.zeros_like(q)
    stop_of_row = stops.tolist()
    for slot, start, first, rows, pair in tiles.tolist():
        if rows == 0 or pair > 0:
            continue
        cached_keys, cached_values = slots[slot, layer]
        seen = max(stop_of_row[first : first + rows])
        own = slice(first, first + rows)
        keys, values = (
            torch.cat((cached[:, :start], fresh[own].transpose(0, 1), cached[:, start + rows : seen]), dim=1)
            for cached, fresh in ((cached_keys, k), (cached_values, v))
        )
        at = first
        for stop, run in groupby(stop_of_row[first : first + rows]):
            end = at + len(list(run))
            if stop > 0:
                out[at:end] = sdpa(q[at:end], keys[:, :stop], values[:, :stop])
            at = end
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor) -> Tensor:
    return q.new_empty(q.shape)


_slot_attention = define(
    "slot_attention(Tensor q, Tensor k, Tensor v, Tensor slots, int layer, Tensor tiles, Tensor stops) -> Tensor",
    _reference,
    _fake,
    launches=1,
)
