"""Block routing (LLaDA2.2): a row chooses among the experts that score highest anywhere in its block of positions.

Shape suffixes: R rows, N experts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def blocks_of(positions: Tensor, block_size: int) -> Tensor:
    """The blocks of packed rows at int64 positions [R], as ascending numbers, int64 [R]. A block ends before a multiple
    of `block_size`, and where the next row is not at the next position."""
    before = torch.cat((positions[:1], positions[:-1]))
    return ((positions % block_size == 0) | (positions != before + 1)).cumsum(0) - 1


def within_blocks(ranked: Tensor, blocks: Tensor, capacity: int) -> Tensor:
    """What is added to the scores fp32 [R, N] that experts are chosen by: -inf for all but the `capacity` experts with
    the highest scores in any row of the same block, of equal ones the first; 0 for these."""
    rows = blocks[:, None].expand_as(ranked)
    highest = torch.full_like(ranked, -torch.inf).scatter_reduce(0, rows, ranked, "amax")
    kept = highest.sort(dim=1, descending=True, stable=True).indices[:, :capacity]
    return torch.full_like(highest, -torch.inf).scatter(1, kept, 0.0)[blocks]
