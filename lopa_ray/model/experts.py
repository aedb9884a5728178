"""A mixture of experts: the MLP of sparse layers. Weights of all experts of a projection are one tensor.

Rows are sorted by expert, so that a projection of all experts is one operator. Its number of launches depends neither
on the number of experts nor on which of them are chosen, and the host need not know.

Shape suffixes: R rows, S sorted rows (R · P), D hidden size, N experts, P experts per row, F their width, I inputs,
O outputs, G groups of inputs. With tensor parallelism N is what this shard has of the experts, or F what it has of
each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lopa_ray.kernels.fp8 import FP8
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.silu_mul import silu_mul
from lopa_ray.kernels.sort_rows import SortedRows, sort_rows
from lopa_ray.kernels.weighted_sum import weighted_sum
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import product
from lopa_ray.model.mlp import GatedMLP
from lopa_ray.model.quantized import fp8_scales, quantize_rows
from lopa_ray.model.router import Router
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup, own_experts


class ExpertLinear(nn.Module):
    """A linear layer per expert: weights [N, O, I]."""

    def __init__(
        self, count: int, in_features: int, out_features: int, *, batch_invariant: bool = False
    ) -> None:
        super().__init__()
        self._batch_invariant = batch_invariant
        self.weight = nn.Parameter(torch.empty(count, out_features, in_features))

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x. What is behind the last end has no value."""
        return grouped_matmul(x, self.weight, rows.ends, batch_invariant=self._batch_invariant)


class Int8ExpertLinear(nn.Module):
    """The same with int8 weights, and scales fp32 [N, O]; see `Int8Linear`."""

    def __init__(
        self,
        count: int,
        in_features: int,
        out_features: int,
        *,
        int8_activations: bool,
        tp_group: TensorParallelGroup = SINGLE_SHARD,
        batch_invariant: bool = False,
    ) -> None:
        """`tp_group`: the shards that have the other inputs, if these are a part of them and activations int8."""
        super().__init__()
        self._batch_invariant = batch_invariant
        self._tp_group = tp_group
        self.int8_activations = int8_activations
        weight = torch.empty(count, out_features, in_features, dtype=torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(
            torch.empty(count, out_features, dtype=torch.float32), requires_grad=False
        )

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O] in the dtype of x. What is behind the last end has no value."""
        scale = self.weight_scale[rows.experts.clamp(max=len(self.weight_scale) - 1)]
        if not self.int8_activations:
            out = grouped_matmul(x, self.weight, rows.ends, batch_invariant=self._batch_invariant)
            return out.mul_(scale)
        quantized, row_scale = quantize_rows(x, self._tp_group)
        product = self._tp_group.all_reduce(grouped_matmul(quantized, self.weight, rows.ends))
        return product.float().mul_(row_scale[:, None]).mul_(scale).to(x.dtype)


class Fp8ExpertLinear(nn.Module):
    """The same with fp8 weights, and scales fp32 [N, O, G], each of `width` inputs; see `Fp8Linear`."""

    def __init__(self, count: int, in_features: int, out_features: int, width: int) -> None:
        super().__init__()
        self.width = width
        shape = (count, out_features, in_features)
        self.weight = nn.Parameter(torch.empty(shape, dtype=FP8), requires_grad=False)
        self.group_scale: nn.Parameter | None = fp8_scales(shape, width)

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x, with weights unfolded to it within the product.

        What is behind the last end has no value.
        """
        return grouped_matmul(x, self.weight, rows.ends, self.group_scale, self.width)


class Experts(nn.Module):
    """The chosen experts of each row: a gated MLP per expert.

    A shard's result is its part of a sum over all shards; with int8 activations it is the whole, in the bits of one
    process. Parts of experts then add up their products, which are integers, and whole experts their results
    [R, P, D], of which one shard alone has each.
    """

    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup) -> None:
        """`config` is the shard's."""
        super().__init__()
        assert config.experts is not None
        int8_activations = config.quantization == "w8a8"
        self._own = own_experts(config.experts, tp_group.rank, tp_group.size)
        self._count = config.experts.count
        batch_invariant = config.batch_invariant
        self._lacks_some = len(self._own) < self._count
        exact_group = tp_group if int8_activations else SINGLE_SHARD
        self._results_group = exact_group if self._lacks_some else SINGLE_SHARD
        products_group = SINGLE_SHARD if self._lacks_some else exact_group
        count, width, d = len(self._own), config.experts.columns, config.hidden_size
        self.gate_up: ExpertLinear | Int8ExpertLinear | Fp8ExpertLinear
        self.down: ExpertLinear | Int8ExpertLinear | Fp8ExpertLinear
        if config.quantization == "none":
            self.gate_up = ExpertLinear(count, d, 2 * width, batch_invariant=batch_invariant)
            self.down = ExpertLinear(count, width, d, batch_invariant=batch_invariant)
            return
        if config.fp8 is not None:
            self.gate_up = Fp8ExpertLinear(count, d, 2 * width, config.fp8.width(d))
            cut_width = config.fp8.width(width, cut=not self._lacks_some)
            self.down = Fp8ExpertLinear(count, width, d, cut_width)
            return
        self.gate_up = Int8ExpertLinear(
            count,
            d,
            2 * width,
            int8_activations=int8_activations,
            batch_invariant=batch_invariant,
        )
        self.down = Int8ExpertLinear(
            count,
            width,
            d,
            int8_activations=int8_activations,
            tp_group=products_group,
            batch_invariant=batch_invariant,
        )

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
    """Router, chosen experts, and an MLP of the shared ones, if there are any.

    Shards add up their parts in one sum for the whole layer. With int8 activations experts and MLP do, as in the other
    layers, in sums that are exact.
    """

    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup) -> None:
        """`config` is the shard's."""
        super().__init__()
        assert config.experts is not None
        within: TensorParallelGroup = SINGLE_SHARD
        self._tp_group = tp_group
        if config.quantization == "w8a8":
            within, self._tp_group = tp_group, SINGLE_SHARD
        self.router = Router(config.hidden_size, config.experts, product(config))
        self.experts = Experts(config, tp_group)
        self.shared = (
            GatedMLP(config, config.experts.shared_columns, within) if config.experts.shared else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Rows x [R, D] → [R, D], in the dtype of x."""
        chosen, weights = self.router(x)
        out: Tensor = self.experts(x, chosen, weights)
        if self.shared is not None:
            out = out + self.shared(x)
        return self._tp_group.all_reduce(out)
