"""Commits: copies rows of staged keys and values of all layers to any slots, in one kernel.

Shape suffixes: S slots, L layers, K KV heads, C rows of a slot, E head dim, P staged rows, N rows to commit.
"""

from __future__ import annotations

from torch import Tensor

from lopa_ray.kernels.operators import operator


@operator(lambda *_: None, launches=1, mutates=("slots",))
def commit_rows(slots: Tensor, staged: Tensor, table: Tensor) -> None:
    """Copy rows of `staged` [L, 2, P, K, E] into `slots` [S, L, 2, K, C, E], both of one dtype. `table` int64 [N, 3]:
    for each row to commit, its index among the staged rows, the slot, and the position."""
    row, slot, position = table.unbind(1)
    by_row = staged.permute(2, 0, 1, 3, 4)
    slots.permute(0, 4, 1, 2, 3, 5)[slot, position] = by_row[row]
