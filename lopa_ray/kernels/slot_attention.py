"""Attention of all lanes of a step in one call: over what their slots have cached, and over their own fresh rows.

A lane is a run of packed rows: a branch of a request, at consecutive positions. Position p of what its rows see lies
in the lane itself, if the lane has it, and in the lane's slot otherwise. A row sees the positions below its stop.

Lanes are cut into tiles, of which a program of the kernel computes one, for one KV head. A tile is `TILE_ROWS` pairs
of row and query head. Tiles begin at the lane's first row, and keys are taken in blocks that begin at the slot's and
at the lane's first one, so a lane's results do not depend on what else is packed.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim, T tiles, S slots, L layers, C rows of a slot.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from lopa_ray.kernels.operators import define
from lopa_ray.kernels.sdpa import sdpa

TILE_ROWS = 64
"""Pairs of row and query head, of one KV head, in a tile."""

TILE_COLUMNS = 5
"""Of a tile's description: slot, position of the lane's first row, that row, the lane's rows (0: no tile), and
the tile's first pair among those of the lane."""


def slot_attention(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor
) -> Tensor:
    """q [R, H, E] over fresh k, v [R, K, E] and slots [S, L, 2, K, C, E] → [R, H, E].

    `tiles` int64 [T, 5] describes the tiles that together are all rows (see `TILE_COLUMNS`); `stops` int64 [R] is what
    each row sees. Rows that see nothing get 0.
    """
    out: Tensor = _slot_attention(q, k, v, slots, layer, tiles, stops)
    return out


def _reference(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor
) -> Tensor:
    """A call of torch's kernel per lane and run of rows that see the same."""
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
