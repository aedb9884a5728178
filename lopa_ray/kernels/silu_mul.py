"""The gated activation of an MLP: silu(gate) · up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.operators import define, is_differentiable


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] → silu(gate) · up [R, F], of one floating dtype. The gate is the first half of the columns."""
    out: Tensor = _reference(gate_up) if is_differentiable() else _silu_mul(gate_up)
    return out


def _reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _fake(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


_silu_mul = define("silu_mul(Tensor gate_up) -> Tensor", _reference, _fake, launches=1, on_cpu=_reference)
