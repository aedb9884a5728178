"""Router: the experts of a row, and the weight of each of them. All of it is fp32, in any dtype of the model.

With block routing (LLaDA2.2) a row chooses among the experts that score highest anywhere in its block of positions.

Shape suffixes: R rows, D hidden size, N experts, P experts per row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels.choose_experts import choose_experts
from lopa_ray.model.experts_config import ExpertsConfig


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

    def forward(self, x: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows x [R, D] → experts int64 [R, P] by falling score, and their weights fp32 [R, P]. `blocks`: see
        `within_blocks`."""
        experts = self._experts
        bias: Tensor | None = self.expert_bias
        logits = self._product(x.float(), self.weight, None)
        if blocks is not None and bias is not None:
            bias = bias + within_blocks(logits.sigmoid() + bias, blocks, experts.capacity)
        return choose_experts(
            logits,
            bias,
            per_token=experts.per_token,
            groups=1 if experts.capacity else experts.groups,
            kept_groups=1 if experts.capacity else experts.kept_groups,
            scale=experts.scale,
        )


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
