"""Attention of all lanes of a step in one call, over the cached positions of their slots and over their fresh rows.

A lane is a run of packed rows at consecutive positions: a branch of a request. Keys and values come from the lane
itself where it has a position, and from its slot otherwise. A row sees the positions below its stop.

A program of the kernel computes a tile, `TILE_ROWS` pairs of row and query head of a lane, for one KV head. Tiles begin
at the lane's first row, and blocks of keys at the first key of the slot and of the lane. So the results of a lane do
not depend on the other lanes of the step.

Tiles of lanes that see many positions are split into parts of `PART_KEYS` positions, as in Flash-Decoding
(https://pytorch.org/blog/flash-decoding), and a second kernel merges the parts of each tile in their order. How a lane
is split depends on its own rows and stops alone. Merging a single part would change no bit, so it is left out.

Shape suffixes: R packed rows, H query heads, K KV heads, E head dim, T tiles, P parts, S slots, L layers, C rows of a
slot.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator
from lopa_ray.kernels.sdpa import sdpa

TILE_ROWS = 64  # pairs of row and query head, of one KV head, in a tile

TILE_COLUMNS = 5
"""Columns of a tile: slot, position and index of the lane's first row, the number of the lane's rows (0: no tile), and
the index of the tile's first pair among the pairs of the lane."""

PART_KEYS = 1024  # positions of a part

PART_COLUMNS = TILE_COLUMNS + 2
"""Columns of a part: its tile's columns, its index among the parts of the tile, and their number."""

MAX_SPLIT_ROWS = 256
"""Lanes of more rows are not split: their tiles are already about as many programs as a GPU has multiprocessors."""


def slot_attention(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor, parts: Tensor
) -> Tensor:
    """Attention of q [R, H, E] over fresh k and v [R, K, E] and over slots [S, L, 2, K, C, E] → [R, H, E]. `tiles`
    int64 [T, 5] describes the tiles that are not split (see `TILE_COLUMNS`), and `parts` int64 [P, 7] the parts of the
    others (see `PART_COLUMNS`), a tile's parts one after another. Together they cover all rows. `stops` int64 [R] is
    the end (exclusive) of the positions that each row sees. The result of a row that sees no position is 0."""
    if parts.shape[0]:
        return _split_attention(q, k, v, slots, layer, tiles, stops, parts)
    return _slot_attention(q, k, v, slots, layer, tiles, stops)


@operator(lambda q, *_: q.new_empty(q.shape), launches=1)
def _slot_attention(
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
                # Copies: CPU kernels round by alignment, and a view's heads lie as far apart as other rows see.
                seen_keys, seen_values = keys[:, :stop].contiguous(), values[:, :stop].contiguous()
                out[at:end] = sdpa(q[at:end], seen_keys, seen_values)
            at = end
    return out


@operator(lambda q, *_: q.new_empty(q.shape), launches=3)
def _split_attention(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, layer: int, tiles: Tensor, stops: Tensor, parts: Tensor
) -> Tensor:
    """The same, without splitting anything."""
    tiles_of_parts = parts[parts[:, TILE_COLUMNS] == 0, :TILE_COLUMNS]
    return _slot_attention(q, k, v, slots, layer, torch.cat((tiles, tiles_of_parts)), stops)
