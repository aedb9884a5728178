"""The gated activation of an MLP: silu(gate) · up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.operators import operator


@operator(lambda gate_up: gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2), launches=1)
def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] → silu(gate) · up [R, F], of one floating dtype. The gate is the first half of the columns."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
