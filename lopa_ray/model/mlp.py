"""GatedMLP: the MLP of a dense layer, and of experts that take every row."""

from __future__ import annotations

from torch import Tensor, nn

from lopa_ray.kernels.silu_mul import silu_mul
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import Linear
from lopa_ray.model.tensor_parallel import TensorParallelGroup


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), with one product for gate and up."""

    def __init__(self, config: NativeConfig, width: int, tp_group: TensorParallelGroup) -> None:
        super().__init__()
        self.gate_up = Linear(config, (2 * width, config.hidden_size))
        self.down = Linear(config, (config.hidden_size, width), tp_group)

    def forward(self, x: Tensor) -> Tensor:
        """Rows x [R, D] → [R, D], in the dtype of x."""
        out: Tensor = self.down(silu_mul(self.gate_up(x)))
        return out
