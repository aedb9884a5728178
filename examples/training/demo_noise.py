"""The noise of diffusion samples: which columns of a window are masked, and which digits are false or do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

WINDOW = 4
"""The maximum number of blocks of a window."""
CORRUPTED_SHARE = 0.2  # of the diffusion samples get a wrong digit, so that confidence falls after it
MISFIT_SHARE = 0.15  # of them have a column too many or too few for a number, so that it falls there too


def choose_masked(
    columns: Tensor,
    offset: Tensor,
    window: Tensor,
    size: Tensor,
    calculated: Tensor,
    uniform: Callable[..., Tensor],
) -> Tensor:
    """The columns [B, T] that are masked, by the block of the window (`offset` [B, T]) that they belong to.

    The share of masks rises from block to block, as in Discrete Diffusion Forcing (arXiv 2508.09192, section 4); a
    fresh last block, of masks alone, is the commonest.
    """
    batch = len(offset)
    ratios = uniform(batch, WINDOW).sort(1).values
    ratios[torch.arange(batch), window - 1] += uniform(batch).round()
    ratios[uniform(batch) < 0.25] = 1.0
    ratio = ratios.clamp(max=1.0).gather(1, offset.clamp(0, WINDOW - 1))
    # A decoder fills first what the question tells, then results from left to right.
    order = uniform(batch, len(columns)) + uniform(batch, 1) * (2 + columns / 16) * calculated
    order += uniform(batch, 1) * columns / size[:, None]
    masked = torch.zeros_like(calculated)
    for index in range(WINDOW):
        inside = offset == index
        rank = order.masked_fill(~inside, -math.inf).argsort(1, descending=True).argsort(1)
        masked |= inside & (rank < (ratio * size[:, None]).ceil())
    return masked


def choose_hole(length: int, first: int, ends: Tensor, uniform: Callable[..., Tensor]) -> Tensor:
    """The columns [B, T] of rows of `length` that are masked: some, or all, of a hole of 1 to 16 columns.

    Answers begin at column `first`, and end before columns `ends` [B].
    """
    batch, columns = len(ends), torch.arange(length)
    sizes = (1 + uniform(batch) ** 2 * 16).long().clamp(max=16)
    begins = first + (uniform(batch) * (ends - first - sizes).clamp(min=1)).long()
    hole = (columns >= begins[:, None]) & (columns < (begins + sizes)[:, None])
    share = uniform(batch, 1) + uniform(batch, 1).round()
    kept = hole & (uniform(batch, length) > share)
    return torch.where((hole & ~kept).any(1, keepdim=True), hole & ~kept, hole)


def corrupt_results(
    ids: Tensor, decided: Tensor, masked_digits: Tensor, digits: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, T] in which some samples hold one wrong digit among the `decided` digits.

    What depends on it has no right answer any more: the targets there are random digits. A decoder
    that compares branches by their confidence needs a model that is unsure after a mistake.
    """
    batch, total = ids.shape
    column = (torch.rand(batch, total, generator=rng) * decided).argmax(1)
    corrupted = decided.any(1) & (torch.rand(batch, generator=rng) < CORRUPTED_SHARE)
    rows = torch.arange(batch)
    value = (ids[rows, column][:, None] == digits).int().argmax(1)
    wrong_digit = digits[(value + torch.randint(1, 10, (batch,), generator=rng)) % 10]
    inputs = ids.clone()
    inputs[rows[corrupted], column[corrupted]] = wrong_digit[corrupted]
    affected = masked_digits & corrupted[:, None] & (torch.arange(total) >= column[:, None] - 1)
    noise = digits[torch.randint(0, 10, (batch, total), generator=rng)]
    return inputs, torch.where(affected, noise, ids)


def misfit_numbers(
    ids: Tensor, result: Tensor, repeated: Tensor, in_window: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some samples with a column more, or less, for a calculated number that has a column in the window.

    `in_window` [B, up to T] says which columns that are.

    Returns ids, results and repeated results [B, T], and which columns [B, T] such a number has now. What stands after
    a number is often filled before it and says how many digits it has. Where they do not fit, the model must be unsure.
    """
    batch, total = ids.shape
    calculated = result | repeated
    choosable = calculated[:, : in_window.shape[1]] & in_window
    column = (torch.rand(choosable.shape, generator=rng) * choosable).argmax(1)
    chosen = choosable.any(1) & (torch.rand(batch, generator=rng) < MISFIT_SHARE)
    # Which number of its row a column belongs to, from 1.
    numbers = (calculated & ~calculated.roll(1, 1)).cumsum(1) * calculated
    own = numbers[torch.arange(batch), column][:, None]
    fewer = ((numbers == own).sum(1) > 1) & (torch.rand(batch, generator=rng) < 0.5)
    columns = torch.arange(total)
    moved = torch.where(fewer[:, None], columns >= column[:, None], -(columns > column[:, None]).long())
    source = (columns + moved * chosen[:, None]).clamp(max=total - 1)
    ids, result, repeated, numbers = (x.gather(1, source) for x in (ids, result, repeated, numbers))
    return ids, result, repeated, chosen[:, None] & (numbers == own)
