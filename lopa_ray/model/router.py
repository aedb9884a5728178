"""Router: the experts of a row, and the weight of each of them. All of it is fp32, in any dtype of the model.

Shape suffixes: R rows, D hidden size, N experts, G groups, P experts per row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.experts_config import ExpertsConfig

MIN_TOTAL = 1e-20
"""Added to the sum that weights are divided by, as published for sigmoids. Probabilities do not change by so little."""


class Router(nn.Module):
    """Scores of all experts, and the choice among them. Equal scores go to the lowest expert, and group."""

    def __init__(
        self, hidden_size: int, experts: ExpertsConfig, product: Callable[..., Tensor] = F.linear
    ) -> None:
        super().__init__()
        self._experts = experts
        self._product = product
        self.weight = nn.Parameter(torch.empty(experts.count, hidden_size, dtype=torch.float32))
        self.expert_bias: nn.Parameter | None = None
        """Added to the scores that experts are chosen by, and not to their weights."""
        if experts.router == "sigmoid":
            self.expert_bias = nn.Parameter(torch.empty(experts.count, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x [R, D] → experts int64 [R, P] by falling score, and their weights fp32 [R, P]."""
        logits = self._product(x.float(), self.weight, None)
        if self.expert_bias is None:
            scores = ranked = logits.softmax(dim=-1)
        else:
            scores = logits.sigmoid()
            ranked = scores + self.expert_bias
        chosen = _largest(self._within_best_groups(ranked), self._experts.per_token)
        weights = scores.gather(1, chosen)
        total = weights.sum(dim=-1, keepdim=True) + MIN_TOTAL
        return chosen, weights / total * self._experts.scale

    def _within_best_groups(self, ranked: Tensor) -> Tensor:
        """The scores [R, N], less those of experts whose group is not among the best."""
        count = self._experts.groups
        if count == 1:
            return ranked
        groups = ranked.unflatten(-1, (count, -1))
        kept = _largest(groups.topk(2, dim=-1).values.sum(dim=-1), self._experts.kept_groups)
        is_left_out = torch.ones_like(groups[:, :, 0], dtype=torch.bool).scatter_(1, kept, False)
        masked: Tensor = groups.masked_fill(is_left_out[:, :, None], -torch.inf)
        return masked.flatten(1)


def _largest(values: Tensor, count: int) -> Tensor:
    """Indices [R, count] of the largest of each row, by falling value; of equal ones the first."""
    order: Tensor = values.sort(dim=-1, descending=True, stable=True).indices
    return order[:, :count]
