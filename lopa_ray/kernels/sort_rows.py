"""The order of rows by expert, in which each row appears once per expert that it is routed to.

Shape suffixes: R rows, P experts per row, S sorted rows (R · P), N experts that a shard has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator


class SortedRows(NamedTuple):
    """The places where rows go to, and where they come from."""

    sources: Tensor
    """int64 [S]: the row of each sorted row."""
    experts: Tensor
    """int64 [S]: the expert of each, counted from the first that the shard has; N or more for experts it lacks."""
    ends: Tensor
    """int32 [N]: the end of each expert's rows. Rows of other shards' experts come last."""
    places: Tensor
    """int64 [R, P]: the sorted row of each row and place among its experts."""


def sort_rows(chosen: Tensor, own: range, count: int) -> SortedRows:
    """The stably sorted rows for the experts int64 [R, P] that rows go to, of which the shard has `own` of `count`."""
    return SortedRows(*_sort_rows(chosen, own.start, len(own), count))


@operator(
    lambda chosen, first, own, count: (
        *(chosen.new_empty(chosen.numel()) for _ in range(2)),
        chosen.new_empty(own, dtype=torch.int32),
        chosen.new_empty(chosen.shape),
    ),
    launches=1,
)
def _sort_rows(chosen: Tensor, first: int, own: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    experts = chosen.flatten()
    if own < count:
        experts = (experts - first) % count
    experts, order = experts.sort(stable=True)
    every = torch.arange(max(own, len(order)), device=chosen.device)
    ends = torch.searchsorted(experts, every[:own], right=True)
    places = torch.empty_like(order).index_copy_(0, order, every[: len(order)])
    return order // chosen.shape[1], experts, ends.to(torch.int32), places.view_as(chosen)
