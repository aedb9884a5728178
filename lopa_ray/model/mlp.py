"""GatedMLP: the MLP of a dense layer, and of experts that take every row."""

from __future__ import annotations

from torch import Tensor, nn

from lopa_ray.kernels.silu_mul import silu_mul
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import Linear
from lopa_ray.model.tensor_parallel import TensorParallelGroup


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), with one product for gate and up."""

    def __init__(
        self, config: NativeConfig, width: int, tp_group: TensorParallelGroup, *, drafts: bool = False
    ) -> None:
        """`drafts`: it has the draft adapters of the model, if there are any."""
        super().__init__()
        gate_up, down = (config.draft_width(f"mlp.{name}") if drafts else 0 for name in ("gate_up", "down"))
        self.gate_up = Linear(config, (2 * width, config.hidden_size), draft_width=gate_up)
        self.down = Linear(config, (config.hidden_size, width), tp_group, draft_width=down)

    def forward(self, x: Tensor, draft_rows: Tensor | None = None) -> Tensor:
        """Rows x [R, D] → [R, D], in the dtype of x. `draft_rows`: see `Linear.forward`."""
        out: Tensor = self.down(silu_mul(self.gate_up(x, draft_rows)), draft_rows)
        return out
