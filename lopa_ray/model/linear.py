"""Floating linear layers: torch's, or with `model.batch_invariant` those whose rows do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.errors import SettingsError
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.invariant_linear import invariant_linear, place_matters
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.weight_format import Shape, Shards, WeightFormat
from lopa_ray.model.tensor_parallel import RowParallelLinear


class InvariantLinear(nn.Linear):
    """A linear layer in which the bits of a row do not depend on the other rows."""

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O], in the dtype of x; see `invariant_linear`."""
        return invariant_linear(x, self.weight, self.bias)


class ExpertLinear(nn.Module):
    def __init__(self, shape: tuple[int, int, int], batch_invariant: bool) -> None:
        super().__init__()
        self._batch_invariant = batch_invariant
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x."""
        return grouped_matmul(x, self.weight, rows.ends, batch_invariant=self._batch_invariant)


class Floating(WeightFormat):
    def linear(
        self, config: NativeConfig, shape: Shape, group: Shards = None, bias: bool = False
    ) -> nn.Module:
        outputs, inputs = shape
        if group is not None:
            return RowParallelLinear(inputs, outputs, group, product(config))
        return linear(config, inputs, outputs, bias=bias)

    def experts(self, config: NativeConfig, count: int, shape: Shape, group: Shards = None) -> nn.Module:
        return ExpertLinear((count, *shape), config.batch_invariant)


def linear(config: NativeConfig, in_features: int, out_features: int, *, bias: bool = False) -> nn.Linear:
    kind = InvariantLinear if config.batch_invariant else nn.Linear
    return kind(in_features, out_features, bias=bias)


def check_places(model: nn.Module) -> None:
    """Raise SettingsError if this CPU's products depend on the place of a row, with torch's present threads."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() < 2 or not weight.is_floating_point():
            continue
        if isinstance(module, nn.Embedding) or not weight.is_cpu:
            continue
        outputs, inputs = weight.shape[-2:]
        if place_matters("cpu", weight.dtype, outputs, inputs, torch.get_num_threads()):
            raise SettingsError(
                f"model.batch_invariant: got true, but with {torch.get_num_threads()} torch threads products of "
                f"{weight.dtype} on this CPU depend on a row's place for weights [{outputs}, {inputs}]; set "
                "group.num_cpus to 1 or 2, or model.dtype to float32"
            )


def product(config: NativeConfig) -> Callable[..., Tensor]:
    """The function of x [R, I], weight [O, I] and bias [O] or None that computes a model's products [R, O], all of one
    floating dtype."""
    return invariant_linear if config.batch_invariant else F.linear
