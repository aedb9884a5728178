"""DraftAdapter: a LoRA parallel to the output projection of attention, for the rows that draft and no others.

It is never merged: a forward may have rows of both kinds (`Plan.draft_adapter`). Nemotron-Labs-Diffusion's checkpoints
have one in their folder `linear_spec_lora`.

Shape suffixes: R rows, I inputs of this shard, D hidden size, P rank.
"""

from __future__ import annotations

from torch import Tensor, nn

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import Linear
from lopa_ray.model.tensor_parallel import TensorParallelGroup


class DraftAdapter(nn.Module):
    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup) -> None:
        super().__init__()
        inputs, rank = config.num_heads * config.head_dim, config.draft_rank
        self.down = Linear(config, (rank, inputs), tp_group, quantization="none")
        self.up = Linear(config, (config.hidden_size, rank), quantization="none")

    def forward(self, x: Tensor, draft_rows: Tensor) -> Tensor:
        """x [R, I] → what is added to the projection of each row [R, D] in the dtype of x: 0 where `draft_rows`,
        floating [R], is 0. All shards get the whole sum."""
        update: Tensor = self.up(self.down(x))
        return update * draft_rows.to(x.dtype)[:, None]
