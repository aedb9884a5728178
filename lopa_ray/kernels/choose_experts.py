"""A router's choice: the experts of each row, and the weight of each of them. All of it is fp32.

Shape suffixes: R rows, N experts, G groups of experts, P experts per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator

MIN_TOTAL = 1e-20
"""Added to the sum that weights are divided by, as published for sigmoids. Probabilities do not change by so little."""


@operator(
    lambda logits, bias, per_token, *_: (
        logits.new_empty(len(logits), per_token, dtype=torch.int64),
        logits.new_empty(len(logits), per_token),
    ),
    launches=1,
)
def choose_experts(
    logits: Tensor, bias: Tensor | None, per_token: int, groups: int, kept_groups: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Logits fp32 [R, N] → experts int64 [R, P] by falling score, and their weights fp32 [R, P]. Scores are
    probabilities, or with a `bias` fp32 [N] or [R, N] sigmoids. The bias is added to the scores that experts are chosen
    by, and not to their weights, which are divided by their sum and multiplied by `scale`. Only the `kept_groups` of G
    `groups` with the largest sums of their two best experts have a choice. Equal scores go to the lowest expert, and
    group."""
    scores = ranked = logits.softmax(dim=-1) if bias is None else logits.sigmoid()
    if bias is not None:
        ranked = scores + bias
    if groups > 1:
        ranked = _within_best_groups(ranked, groups, kept_groups)
    chosen = _largest(ranked, per_token)
    weights = scores.gather(1, chosen)
    total = weights.sum(dim=-1, keepdim=True) + MIN_TOTAL
    return chosen, weights / total * scale


def _within_best_groups(ranked: Tensor, count: int, kept: int) -> Tensor:
    """The scores [R, N], without experts whose group is not among the best."""
    groups = ranked.unflatten(-1, (count, -1))
    best = _largest(groups.topk(2, dim=-1).values.sum(dim=-1), kept)
    is_left_out = torch.ones_like(groups[:, :, 0], dtype=torch.bool).scatter_(1, best, False)
    masked: Tensor = groups.masked_fill(is_left_out[:, :, None], -torch.inf)
    return masked.flatten(1)


def _largest(values: Tensor, count: int) -> Tensor:
    """Indices [R, count] of the largest of each row, by falling value; of equal values the first."""
    order: Tensor = values.sort(dim=-1, descending=True, stable=True).indices
    return order[:, :count].contiguous()
