"""Greedy tokens of rows of logits, their probabilities, log-probabilities and ranking scores, in one pass.

Shape suffixes: N rows, V vocabulary, W ids that end an answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import define

EPSILON = 1e-10
"""Keeps the logarithm of neg_entropy finite; the published value."""

RANKINGS = ("probability", "margin", "neg_entropy")
"""Their indices are the rankings of rows."""

SCORE_COLUMNS = 4
"""Of a scored row: token, probability, log-probability, score."""

CPU_LOGITS = 2**18
"""A CPU takes so many logits at a time, or a row: what it makes of them stays in its caches."""


def row_scores(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    """Logits [N, V] of any float type → fp64 [N, 4] (see `SCORE_COLUMNS`).

    `numbers` fp64 [N, 3 or more]: temperature of probabilities and scores, ranking, and whether they are those of
    logits rounded to fp16. `ending_ids` int64 [N, W]: ids that the row must not choose (-1: none); `banned` bool [V]:
    ids that no row may choose.

    The token is the most likely that is left, of equal ones the lowest; its log-probability is of the plain softmax.

    On CUDA neg_entropy is without the published `EPSILON`, which moves the sum by V times that at most.
    """
    out: Tensor = _row_scores(logits, numbers, ending_ids, banned)
    return out


def _by_few_rows(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    rows = max(1, CPU_LOGITS // logits.shape[1])
    parts = zip(logits.split(rows), numbers.split(rows), ending_ids.split(rows), strict=True)
    return torch.cat([_reference(*part, banned) for part in parts])


def _reference(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    plain = logits.float()
    temperatures, rankings, halves = numbers[:, :3].unbind(1)
    shaped = torch.where(halves[:, None] > 0, plain.half().float(), plain) if bool(halves.any()) else plain
    if bool((temperatures != 1).any()):
        shaped = shaped / temperatures[:, None].to(shaped.dtype)
    probabilities = shaped.softmax(-1)
    # The largest probability is exp(largest logit) / sum; logsumexp would take as long as half of all this.
    of_plain = probabilities if shaped is plain else plain.softmax(-1)
    log_sum = plain.amax(-1) - of_plain.amax(-1).log()
    # A product takes a fifth of the time of masked_fill, on CPU.
    weights = mask_ids(probabilities * (~banned).to(probabilities.dtype), ending_ids, 0.0)
    best, tokens = weights.max(-1)
    if bool((best <= 0).any()):  # forbidden logits so high that every other probability vanishes
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
    """x [N, V] of any dtype, overwritten with `value` at each row's ids int64 [N, W]; others than [0, V) are none."""
    for column in ids.unbind(1):
        inside = (column >= 0) & (column < x.shape[1])
        at = column.clamp(0, x.shape[1] - 1)[:, None]
        x.scatter_(1, at, torch.where(inside[:, None], value, x.gather(1, at)))
    return x


def _fake(logits: Tensor, numbers: Tensor, ending_ids: Tensor, banned: Tensor) -> Tensor:
    return numbers.new_empty(logits.shape[0], SCORE_COLUMNS)


_row_scores = define(
    "row_scores(Tensor logits, Tensor numbers, Tensor ending_ids, Tensor banned) -> Tensor",
    _reference,
    _fake,
    launches=1,
    on_cpu=_by_few_rows,
)
