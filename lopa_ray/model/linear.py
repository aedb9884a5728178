"""Floating linear layers: torch's, or with `model.batch_invariant` those whose rows do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.errors import SettingsError
from lopa_ray.kernels.invariant_linear import invariant_linear, place_matters
from lopa_ray.model.config import NativeConfig


class InvariantLinear(nn.Linear):
    """A linear layer in which the bits of a row do not depend on the other rows."""

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O], in the dtype of x; see `invariant_linear`."""
        return invariant_linear(x, self.weight, self.bias)


def linear(config: NativeConfig, in_features: int, out_features: int, *, bias: bool = False) -> nn.Linear:
    """The linear layer of a model."""
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
