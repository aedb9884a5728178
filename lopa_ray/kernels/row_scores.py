"""Greedy tokens of rows of logits, with their probabilities, log-probabilities and ranking scores, in one pass.

Shape suffixes: N rows, V vocabulary, W ids that end an answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator

EPSILON = 1e-10
"""Added to probabilities before the logarithm of neg_entropy, to keep it finite. This is the published value."""

RANKINGS = ("probability", "margin", "neg_entropy")
"""Names of the rankings. A row's ranking is given as an index into this tuple."""

SCORE_COLUMNS = 4  # number of columns of a scored row: token, probability, log-probability, score

CPU_LOGITS = 2**18
"""Logits that the reference processes at a time (at least one row): intermediate results stay in a CPU's caches."""


@operator(lambda logits, numbers, *_: numbers.new_empty(len(logits), SCORE_COLUMNS), launches=2)
def row_scores(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    """Logits [N, V] of any float type → fp64 [N, 4] (see `SCORE_COLUMNS`). `numbers` fp64 [N, 3 or more]: the
    temperature of probabilities and scores, the ranking, and whether logits are rounded to fp16 for them. `ending_ids`
    int64 [N, W]: ids that the row must not choose (-1: none). `banned` bool [V]: ids that no row may choose. Of equally
    likely tokens the lowest id is chosen. The log-probability is from the softmax without temperature and rounding.
    On CUDA neg_entropy is computed without the published `EPSILON`, which changes the sum by at most V · `EPSILON`."""
    # A power of two, so that no part is smaller than the others: torch splits the sum of a single row over threads.
    rows = 1 << max(0, (CPU_LOGITS // logits.shape[1]).bit_length() - 1)
    parts = zip(logits.split(rows), numbers.split(rows), ending_ids.split(rows), strict=True)
    return torch.cat([_scores(*part, banned) for part in parts])


def _scores(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    plain = logits.float()
    temperatures, rankings, halves = numbers[:, :3].unbind(1)
    shaped = torch.where(halves[:, None] > 0, plain.half().float(), plain) if bool(halves.any()) else plain
    if bool((temperatures != 1).any()):
        shaped = shaped / temperatures[:, None].to(shaped.dtype)
    probabilities = shaped.softmax(-1)
    # ln Σ exp follows from the largest probability, exp(largest logit) ÷ Σ exp. A call of logsumexp would take about
    # half as long as this whole function.
    of_plain = probabilities if shaped is plain else plain.softmax(-1)
    log_sum = plain.amax(-1) - of_plain.amax(-1).log()
    # On CPU a product takes a fifth of the time of masked_fill.
    weights = mask_ids(probabilities * (~banned).to(probabilities.dtype), ending_ids, 0.0)
    best, tokens = weights.max(-1)
    if bool((best <= 0).any()):  # forbidden logits are so high that all other probabilities are 0
        left = mask_ids(shaped.masked_fill(banned, -torch.inf), ending_ids, -torch.inf)
        tokens = torch.where(best <= 0, left.argmax(-1), tokens)
    chosen = probabilities.gather(1, tokens[:, None])[:, 0]
    logprobs = plain.gather(1, tokens[:, None])[:, 0] - log_sum
    scores = chosen
    if bool((rankings == RANKINGS.index("margin")).any()):
        two = weights.topk(2, dim=-1).values
        scores = torch.where(rankings == RANKINGS.index("margin"), two[:, 0] - two[:, 1], scores)
    if bool((rankings == RANKINGS.index("neg_entropy")).any()):
        entropies = (probabilities * torch.log(probabilities + EPSILON)).sum(-1)
        scores = torch.where(rankings == RANKINGS.index("neg_entropy"), entropies, scores)
    return torch.stack([column.double() for column in (tokens, chosen, logprobs, scores)], -1)


def mask_ids(x: Tensor, ids: Tensor, value: float) -> Tensor:
    """x [N, V] of any dtype, set to `value` in place at each row's ids int64 [N, W]. Ids outside [0, V) are ignored."""
    for column in ids.unbind(1):
        inside = (column >= 0) & (column < x.shape[1])
        at = column.clamp(0, x.shape[1] - 1)[:, None]
        x.scatter_(1, at, torch.where(inside[:, None], value, x.gather(1, at)))
    return x
