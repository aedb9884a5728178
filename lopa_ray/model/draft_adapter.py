"""DraftAdapter: a LoRA parallel to a linear layer, for the rows that draft and no others.

It is never merged: a forward may have rows of both kinds (`Plan.draft_adapter`). A layer that fuses several published
modules has one product for the A of all of them, and one for their B, which are the blocks of a diagonal.

Shape suffixes: R rows, I inputs of this shard, O outputs of this shard, P ranks of all fused modules together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.packed import pack, packed_product
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
        self.width = width
        self.down: HeldWeights | None
        self.down = HeldWeights(WeightFormat(config, inputs, is_cut=False), (width, inputs), tp_group)
        self.up = HeldWeights(WeightFormat(config, width, is_cut=False), (outputs, width), None)

    def join(self, layer: HeldWeights) -> None:
        """Let `layer`, whose weights are about to be packed, multiply by `down` too, and pack `up`: so small a product
        takes longer to begin than to compute."""
        assert self.down is not None
        layer.weight = nn.Parameter(torch.cat([layer.weight, self.down.weight]), requires_grad=False)
        if layer.bias is not None:
            layer.bias = nn.Parameter(F.pad(layer.bias, (0, self.width)), requires_grad=False)
        self.down = None
        self.up.weight, self.up.format.multiply = pack(self.up.weight), packed_product

    def forward(self, x: Tensor, out: Tensor, draft_rows: Tensor | None) -> Tensor:
        """The layer's product `out` [R, O] (joined: [R, O + P]) with the update of its inputs x [R, I], for rows whose
        `draft_rows` [R, 1] are 1, not 0; None: for none. All have one dtype."""
        if self.down is None:
            out, narrow = out.split([out.shape[1] - self.width, self.width], dim=1)
        if draft_rows is None:
            return out.contiguous()
        if self.down is not None:
            narrow = self.down.tp_group.all_reduce(self.down.format.product(self.down, x))
        return out + self.up.format.product(self.up, narrow * draft_rows)
