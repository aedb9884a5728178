"""Greedy tokens of rows of logits, with their probabilities, log-probabilities and ranking scores, in one pass.

Shape suffixes: N rows, V vocabulary, W ids that end an answer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator

EPSILON = 1e-10
"""Added to probabilities before the logarithm of neg_entropy, to keep it finite. This is the published value."""

RANKINGS = ("probability", "margin", "neg_entropy")
"""Names of the rankings. A row's ranking is given as an index into this tuple."""

SCORE_COLUMNS = 4  # number of columns of a scored row: token, probability, log-probability, score

MIN_RUN, MAX_RUN = 16, 256  # columns of which the maximum is found without its place

CPU_LOGITS = 2**18
"""Logits that the reference processes at a time (at least one row): intermediate results stay in a CPU's caches."""


@operator(lambda logits, numbers, *_: numbers.new_empty(len(logits), SCORE_COLUMNS), launches=2)
def row_scores(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    """Logits [N, V] of any float type → fp64 [N, 4] (see `SCORE_COLUMNS`). `numbers` fp64 [N, 3 or more]: the
    temperature of probabilities and scores, the ranking, and whether logits are rounded to fp16 for them. `ending_ids`
    int64 [N, W]: ids that the row must not choose (-1: none). `banned` bool [V]: ids that no row may choose. Of equally
    likely tokens the lowest id is chosen. The log-probability is from the softmax without temperature and rounding.
    On CUDA neg_entropy is computed without the published `EPSILON`, which changes the sum by at most V · `EPSILON`."""
    kinds, banned_ids = RowKinds.of(numbers), banned.nonzero()[:, 0]
    # A power of two, so that no part is smaller than the others: torch splits the sum of a single row over threads.
    rows = 1 << max(0, (CPU_LOGITS // logits.shape[1]).bit_length() - 1)
    parts = zip(logits.split(rows), numbers.split(rows), ending_ids.split(rows), strict=True)
    reduced = [_reduce(*part, banned_ids, kinds) for part in parts]
    tokens, chosen, log_sums, scores = (torch.cat(column) for column in zip(*reduced, strict=True))
    if bool((chosen <= 0).any()):  # forbidden logits are so high that all other probabilities are 0
        at = (chosen <= 0).nonzero()[:, 0]
        left = kinds.shaped(logits[at].float(), numbers[at]).masked_fill(banned, -torch.inf)
        tokens[at] = mask_ids(left, ending_ids[at], -torch.inf).argmax(-1)
    logprobs = logits.gather(1, tokens[:, None])[:, 0].float() - log_sums
    return torch.stack([column.double() for column in (tokens, chosen, logprobs, scores)], -1)


class RowKinds(NamedTuple):
    """Kinds of values that some of the rows have."""

    has_half: bool
    has_temperature: bool
    has_margin: bool
    has_neg_entropy: bool

    @classmethod
    def of(cls, numbers: Tensor) -> RowKinds:
        """`numbers` fp64 [N, 3 or more]: see `row_scores`."""
        temperatures, rankings, halves = numbers[:, :3].unbind(1)
        margin, neg_entropy = ((rankings == RANKINGS.index(name)).any() for name in ("margin", "neg_entropy"))
        return cls(*map(bool, ((halves > 0).any(), (temperatures != 1).any(), margin, neg_entropy)))

    def shaped(self, plain: Tensor, numbers: Tensor) -> Tensor:
        """Logits fp32 [N, V] with the rounding and the temperature of each row; `plain` itself if there is neither."""
        shaped = torch.where(numbers[:, 2:3] > 0, plain.half().float(), plain) if self.has_half else plain
        return shaped / numbers[:, :1].to(shaped.dtype) if self.has_temperature else shaped


def _reduce(
    logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned_ids: Tensor, kinds: RowKinds
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The most likely token that is not forbidden, int64 [N], its probability, the logarithm of Σ exp of the logits
    without temperature and rounding, and the ranking score, fp32 [N] each."""
    plain = logits.float()
    shaped = kinds.shaped(plain, numbers)
    probabilities = shaped.softmax(-1)
    # ln Σ exp follows from the largest probability, exp(largest logit) ÷ Σ exp. A call of logsumexp would take about
    # half as long as this whole function.
    of_plain = probabilities if shaped is plain else plain.softmax(-1)
    log_sums = plain.amax(-1) - of_plain.amax(-1).log()
    entropies = margins = None
    if kinds.has_neg_entropy:
        entropies = (probabilities * torch.log(probabilities + EPSILON)).sum(-1)
    weights = mask_ids(probabilities.index_fill_(1, banned_ids, 0.0), ending_ids, 0.0)
    chosen, tokens = first_max(weights)
    if kinds.has_margin:
        two = weights.topk(2, dim=-1).values
        margins = two[:, 0] - two[:, 1]
    scores = chosen
    for name, of_ranking in (("margin", margins), ("neg_entropy", entropies)):
        if of_ranking is not None:
            scores = torch.where(numbers[:, 1] == RANKINGS.index(name), of_ranking, scores)
    return tokens, chosen, log_sums, scores


def first_max(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row of x [N, V], [N] in its dtype, and the first column that has it, int64 [N]."""
    rows, columns = x.shape
    size = math.gcd(columns, MAX_RUN)
    if size < MIN_RUN:
        return x.max(-1)
    # On CPU amax takes a tenth of the time of a maximum with its index.
    runs = x.view(rows, -1, size)
    values, run = runs.amax(-1).max(-1)
    inside = runs.take_along_dim(run[:, None, None], 1)[:, 0].argmax(-1)
    return values, run * size + inside


def mask_ids(x: Tensor, ids: Tensor, value: float) -> Tensor:
    """x [N, V] of any dtype, set to `value` in place at each row's ids int64 [N, W]. Ids outside [0, V) are ignored."""
    for column in ids.unbind(1):
        inside = (column >= 0) & (column < x.shape[1])
        at = column.clamp(0, x.shape[1] - 1)[:, None]
        x.scatter_(1, at, torch.where(inside[:, None], value, x.gather(1, at)))
    return x
