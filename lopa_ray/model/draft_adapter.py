"""DraftAdapter: a LoRA beside the output projection of attention, for the rows that draft and no others.

It is never merged: a forward may have rows of both kinds (`Plan.draft_adapter`). Nemotron-Labs-Diffusion's checkpoints
have one in their folder `linear_spec_lora`.

Shape suffixes: R rows, I inputs of this shard, D hidden size, P rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.lora import LoraAdapter
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.families.native import family_of
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


def read_draft_adapter(
    config: NativeConfig, folder: Path, *, dtype: torch.dtype, device: torch.device | str
) -> Iterator[tuple[str, Tensor]]:
    """The parameters of all layers' adapters, `down` [P, I] and `up` [D, P] in `dtype`, in the names of the model
    `config`. Raises CheckpointError for an adapter of anything but the output projections of all layers, or of several
    ranks."""
    adapter, family = LoraAdapter.load(folder), family_of(config)
    inputs = config.num_heads * config.head_dim
    projections = [family.published_names(f"layers.{i}.o.weight")[0] for i in range(config.num_layers)]
    adapter.check_shapes(dict.fromkeys(projections, (config.hidden_size, inputs)))
    modules = [name.removesuffix(".weight") for name in projections]
    missing = [module for module in modules if module not in adapter.scales]
    if missing:
        raise CheckpointError(
            f"{folder}: got no update of {missing[0]}; a draft adapter has one for every layer: use another one"
        )
    for layer, module in enumerate(modules):
        down, up = adapter.pair(module)
        if len(down) != config.draft_rank:
            raise CheckpointError(
                f"{folder}: got rank {len(down)} for {module}; a draft adapter has one rank, here {config.draft_rank}: "
                "use another one"
            )
        for name, value in (("down", down), ("up", adapter.scales[module] * up)):
            yield f"layers.{layer}.draft.{name}.weight", value.to(device=device, dtype=dtype)
