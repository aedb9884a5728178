"""Tensor parallelism: a model cut into shards that compute together, each with its part of every layer.

Heads, MLP width (or whole experts) and vocabulary are spread over the shards; embedding, norms and hidden rows are the
same on all. Projections into heads or MLP width are column-parallel: a shard computes its outputs alone. Projections
out of them are row-parallel: outputs are the sum of all shards' products, by one all-reduce (with int8 activations also
an all-gather, of scales).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.experts_config import ExpertsConfig
from lopa_ray.model.families.family import fused_rows, row_inputs


class TensorParallelGroup(Protocol):
    """The shards of a model, as one of them has them. All of them make the same calls, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all shards' x, [...] in the same dtype: the same bits on each. x itself may be overwritten. Raises
        TransferError."""

    def all_gather(self, x: Tensor) -> Tensor:
        """All shards' x, in order of rank: [size, *x.shape] in the same dtype. Raises TransferError."""

    def wait(self) -> None:
        """Return when the sums and gathers so far are computed. To be called before the host reads what depends on
        them: it would wait for ever for a shard that is lost. Raises TransferError."""

    def barrier(self, device: torch.device) -> None:
        """Return when all shards have called this, and their devices have done what was enqueued before. Raises
        TransferError."""


@dataclass(frozen=True, slots=True)
class SingleShard:
    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]

    def wait(self) -> None: ...

    def barrier(self, device: torch.device) -> None: ...


SINGLE_SHARD = SingleShard()


class OrderedSums:
    """A `TensorParallelGroup` whose floating sums are in order of rank, in fp32. The order of an all-reduce depends on
    a tensor's size and on an element's place in it, from three shards on. Here all parts are gathered instead: a shard
    receives size ÷ 2 times the bytes of a ring's all-reduce."""

    def __init__(self, tp_group: TensorParallelGroup) -> None:
        self._tp_group = tp_group
        self.rank, self.size = tp_group.rank, tp_group.size
        self.all_gather, self.wait, self.barrier = tp_group.all_gather, tp_group.wait, tp_group.barrier

    def all_reduce(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return self._tp_group.all_reduce(x)  # exact in any order
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        return reduce(torch.add, self.all_gather(x).to(wide).unbind(0)).to(x.dtype)


def shard_range(total: int, rank: int, size: int) -> range:
    """The indices, of `total`, that a shard has; the first shards have one more where `total` is not a multiple."""
    share, more = divmod(total, size)
    start = rank * share + min(rank, more)
    return range(start, start + share + (rank < more))


def own_experts(experts: ExpertsConfig, rank: int, size: int) -> range:
    """The experts of which a shard has weights: whole experts of its own, or a part of every expert."""
    return shard_range(experts.count, rank, size) if experts.are_whole(size) else range(experts.count)


def is_of_experts(name: str) -> bool:
    """Whether the parameter `name` stacks the parameters of experts, [N, ...]."""
    return ".experts." in name


def shard_parameter(name: str, parameter: Tensor, config: NativeConfig, rank: int, size: int) -> Tensor:
    """A shard's part of the parameter `name` of the model `config`, [outputs, inputs], or [outputs] for a bias, in its
    dtype: a copy, but for what all shards have whole. Rows of `qkv`, `gate_up` (each fused part by itself) and LM head
    are cut, and columns of `o` and `down`; of a draft adapter the half that has these. Of whole experts the shard gets
    its own. Scales are cut as weights are, and scales of groups of inputs are repeated where a shard begins within a
    group."""
    if size == 1:
        return parameter
    if config.experts is not None and config.experts.are_whole(size) and is_of_experts(name):
        return _shard_dim(parameter, 0, rank, size).clone()
    layer, of_draft, attribute = name.partition(".draft.")
    if of_draft:
        cuts_inputs = layer.endswith((".o", ".down"))
        if cuts_inputs != (attribute == "down.weight"):
            return parameter
        name = f"{layer}.weight"
    module, attribute = name.split(".")[-2:]
    fused = fused_rows(config, name)
    # Counted from the end: before them come the experts, where a parameter stacks these.
    row_dim = -2 if attribute in ("weight", "group_scale") else -1
    if fused is not None:
        pieces = parameter.split(list(fused), dim=row_dim)
        return torch.cat([_shard_dim(piece, row_dim, rank, size) for piece in pieces], dim=row_dim)
    if module == "lm_head":
        return _shard_dim(parameter, row_dim, rank, size).clone()
    if module in ("o", "down") and attribute == "weight":
        return _shard_dim(parameter, -1, rank, size).clone(memory_format=torch.contiguous_format)
    if module in ("o", "down") and attribute == "group_scale" and parameter.shape[-1] > 1:
        assert config.fp8 is not None
        inputs = row_inputs(config, name)
        own = replace(config.fp8, shards=size).width(inputs // size, cut=True)
        narrow = parameter.repeat_interleave(config.fp8.width(inputs) // own, dim=-1)[..., : inputs // own]
        return _shard_dim(narrow, -1, rank, size).clone(memory_format=torch.contiguous_format)
    return parameter


def _shard_dim(parameter: Tensor, dim: int, rank: int, size: int) -> Tensor:
    own = shard_range(parameter.shape[dim], rank, size)
    return parameter.narrow(dim, own.start, len(own))
