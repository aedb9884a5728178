"""Tensor parallelism: a model cut into shards that compute in step, each with its part of every layer.

Heads, MLP width and vocabulary are spread over the shards; embedding, norms and hidden rows are the same on all.
A projection into heads or MLP width needs nobody else. One out of them gives each shard a summand, and one sum per
such layer is all that shards tell each other (int8 activations: also the scale of a row).

Shape suffixes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.config import ModelConfig
from lopa_ray.model.family import fused_rows


class TensorParallelGroup(Protocol):
    """A shard's place among those of its model. All of them make the same calls, in the same order."""

    @property
    def rank(self) -> int:
        """From 0 on."""
        ...

    @property
    def size(self) -> int:
        """How many shards there are."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all shards' x, the same bits on each; x itself may be overwritten. Raises TransferError."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """All shards' x, in order of rank: [size, *x.shape]. Raises TransferError."""
        ...


@dataclass(frozen=True, slots=True)
class SingleShard:
    """The one shard of a model that is not cut."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """x as the only one."""
        return x[None]


SINGLE_SHARD = SingleShard()


class SummedLinear(nn.Linear):
    """A linear layer without bias, of whose inputs each shard has a part: x [R, I / size] → [R, O]."""

    def __init__(self, inputs: int, outputs: int, parallel: TensorParallelGroup) -> None:
        super().__init__(inputs, outputs, bias=False)
        self._parallel = parallel

    def forward(self, x: Tensor) -> Tensor:
        """The sum of all shards' products."""
        return self._parallel.all_reduce(F.linear(x, self.weight))


def part(total: int, rank: int, size: int) -> range:
    """Which of `total` things a shard has; the first shards have one more where they cannot have equally many."""
    each, more = divmod(total, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


def cut(name: str, whole: Tensor, config: ModelConfig, rank: int, size: int) -> Tensor:
    """A shard's part of the parameter `name` of the model `config`: a copy, but for what all shards have whole.

    Rows of `qkv` and `gate_up` (each fused part by itself) and of the LM head, columns of `o` and `down`. Int8
    weights are cut with the scales that they have as a whole.
    """
    if size == 1:
        return whole
    module, kind = name.split(".")[-2:]
    fused = fused_rows(config, name)
    if fused is not None:
        return torch.cat([_rows(piece, rank, size) for piece in torch.split(whole, list(fused))])
    if module == "lm_head":
        return _rows(whole, rank, size).clone()
    if module in ("o", "down") and kind == "weight":
        columns = part(whole.shape[1], rank, size)
        return whole[:, columns.start : columns.stop].clone(memory_format=torch.contiguous_format)
    return whole


def _rows(whole: Tensor, rank: int, size: int) -> Tensor:
    rows = part(whole.shape[0], rank, size)
    return whole[rows.start : rows.stop]
