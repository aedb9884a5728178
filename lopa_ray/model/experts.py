"""A mixture of experts: the MLP of sparse layers. Weights of all experts of a projection are one tensor.

Rows are sorted by expert, so that a projection of all experts is one operator. Its number of launches depends neither
on the number of experts nor on which of them are chosen, and the host need not know.

Shape suffixes: R rows, D hidden size, P experts per row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lopa_ray.kernels.silu_mul import silu_mul
from lopa_ray.kernels.sort_rows import sort_rows
from lopa_ray.kernels.weighted_sum import weighted_sum
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import FORMATS, ExpertLinear
from lopa_ray.model.mlp import GatedMLP
from lopa_ray.model.quantization.weight_format import product
from lopa_ray.model.router import Router
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup, own_experts


class Experts(nn.Module):
    """The chosen experts of each row: a gated MLP per expert. A shard's result is its part of a sum over all shards, or
    with int8 activations the whole: parts of experts add up integer products, whole experts their results [R, P, D]."""

    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup) -> None:
        super().__init__()
        assert config.experts is not None
        self._own = own_experts(config.experts, tp_group.rank, tp_group.size)
        self._count = config.experts.count
        self._lacks_some = len(self._own) < self._count
        exact = FORMATS[config.quantization].sums_exactly and self._lacks_some
        self._results_group: TensorParallelGroup = tp_group if exact else SINGLE_SHARD
        count, width, d = len(self._own), config.experts.columns, config.hidden_size
        self.gate_up = ExpertLinear(config, (count, 2 * width, d))
        self.down = ExpertLinear(config, (count, d, width), None if self._lacks_some else tp_group)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The sum of the experts `chosen` int64 [R, P] of rows x [R, D], each times its weight fp32 [R, P] → [R, D]."""
        rows = sort_rows(chosen, self._own, self._count)
        gated = silu_mul(self.gate_up(x.index_select(0, rows.sources), rows))
        results: Tensor = self.down(gated, rows)
        ends = rows.ends if self._lacks_some else None
        if self._results_group.size == 1:
            return weighted_sum(results, rows.places, weights, ends)
        # Shards have different orders.
        own = results.masked_fill((rows.experts >= len(self._own))[:, None], 0)
        unsorted = self._results_group.all_reduce(own[rows.places.flatten()])
        every = torch.arange(chosen.numel(), device=x.device).view_as(chosen)
        return weighted_sum(unsorted, every, weights)


class MixtureOfExperts(nn.Module):
    """Router, chosen experts, and an MLP of the shared experts, if there are any. Shards add up their parts in one sum
    for the whole layer, or with int8 activations within experts and MLP, in sums that are exact."""

    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup) -> None:
        super().__init__()
        assert config.experts is not None
        within: TensorParallelGroup = SINGLE_SHARD
        self._tp_group = tp_group
        if FORMATS[config.quantization].sums_exactly:
            within, self._tp_group = tp_group, SINGLE_SHARD
        self.router = Router(config.hidden_size, config.experts, product(config))
        self.experts = Experts(config, tp_group)
        columns = config.experts.shared_columns
        self.shared = GatedMLP(config, columns, within) if config.experts.shared else None

    def forward(self, x: Tensor, blocks: Tensor | None = None) -> Tensor:
        """Rows x [R, D] → [R, D], in the dtype of x. `blocks` int64 [R]: of a model that routes by blocks, the block of
        each row."""
        chosen, weights = self.router(x, blocks)
        out: Tensor = self.experts(x, chosen, weights)
        if self.shared is not None:
            out = out + self.shared(x)
        return self._tp_group.all_reduce(out)
