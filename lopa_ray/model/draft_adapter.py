"""DraftAdapter: a LoRA parallel to a linear layer, for the rows that draft and no others.

It is never merged: a forward may have rows of both kinds (`Plan.draft_adapter`). A layer that fuses several published
modules has one product for the A of all of them, and one for their B, which are the blocks of a diagonal.

Shape suffixes: R rows, I inputs of this shard, O outputs of this shard, P ranks of all fused modules together.
"""

from __future__ import annotations

from torch import Tensor, nn

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.weight_format import HeldWeights, WeightFormat
from lopa_ray.model.tensor_parallel import TensorParallelGroup


class DraftAdapter(nn.Module):
    def __init__(
        self, config: NativeConfig, shape: tuple[int, int], width: int, tp_group: TensorParallelGroup | None
    ) -> None:
        """For a layer with weights of `shape` [O, I]; `width` is P. `tp_group`: the shards that have the other inputs,
        if the layer's result is the sum of all shards already; None: updates are added up with it."""
        super().__init__()
        outputs, inputs = shape
        self.down = HeldWeights(WeightFormat(config, inputs, is_cut=False), (width, inputs), tp_group)
        self.up = HeldWeights(WeightFormat(config, width, is_cut=False), (outputs, width), None)

    def forward(self, x: Tensor, draft_rows: Tensor) -> Tensor:
        """The update of the layer's inputs x [R, I], [R, O] for rows whose `draft_rows` [R, 1] are 1, not 0. All have
        one dtype."""
        narrow = self.down.tp_group.all_reduce(self.down.format.product(self.down, x))
        return self.up.format.product(self.up, narrow * draft_rows)
