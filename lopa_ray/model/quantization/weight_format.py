"""WeightFormat: how linear layers hold their weights, and multiply by them. A format is a file and a line of `FORMATS`.

Shape suffixes: R rows, S sorted rows, N experts, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.invariant_linear import invariant_linear
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.packed import (
    keeps_bits,
    pack,
    packed_expert_product,
    packed_product,
    packs_float32,
    pays,
)
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup


class WeightFormat:
    """Floating weights, and the base of other formats, whose weights are stored in another dtype, with scales in fp32.
    Products of a shard are of its own inputs, but where the format `sums_exactly`: sums of integers are the same in any
    order, so there products are whole, and a model in shards has the bits of the whole one."""

    sums_exactly: ClassVar[bool] = False
    stored_dtype: ClassVar[torch.dtype | None] = None
    scale_name: ClassVar[str] = ""

    def __init__(self, config: NativeConfig, inputs: int, *, is_cut: bool) -> None:
        """The format of a layer with so many inputs, a part of the whole layer's where it `is_cut`."""
        self.config = config
        self.multiply = product(config)
        self.packed_experts: list[nn.Parameter] = []

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales of weights [..., O, I]."""
        return shape[:-1]

    def encode(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Floating weights [..., O, I] → scales fp32, [..., O] or [..., O, G], and weights in `stored_dtype`. Raises
        NotImplementedError for a format that stores floating weights."""
        raise NotImplementedError

    def prepare(self, layer: HeldWeights) -> None:
        """Called once, when the layer has its weights. Trials of kernels belong here: the host waits for them, and in a
        forward a shard may be lost."""

    def pack(self, layer: HeldWeights, *, float32: bool) -> None:
        """Order the layer's weights for this CPU's products, in the place of the weights that it has, where that pays:
        in bf16, where rows round by the batch, and in fp32 if `float32` is set and rows keep their bits. The embedding
        that a tied LM head shares stays as it is."""
        if self.multiply is not F.linear or self.stored_dtype is not None:
            return
        if layer.weight.dim() > 2:
            if pays(layer.weight):
                self.packed_experts = [pack(weight) for weight in layer.weight]
                layer.weight = nn.Parameter(layer.weight.to("meta"), requires_grad=False)
        elif pays(layer.weight) or (float32 and packs_float32(layer.weight)):
            packed = pack(layer.weight)
            if packed.dtype != torch.float32 or keeps_bits(packed, layer.bias):
                layer.weight, self.multiply = packed, packed_product

    def product(self, layer: HeldWeights, x: Tensor) -> Tensor:
        """x [R, I] → [R, O], in the dtype of x."""
        return self.multiply(x, layer.weight, layer.bias)

    def expert_product(self, layer: HeldWeights, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x."""
        if self.packed_experts:
            return packed_expert_product(x, self.packed_experts, rows.ends)
        return grouped_matmul(x, layer.weight, rows.ends, batch_invariant=self.config.batch_invariant)


class HeldWeights(nn.Module):
    """Weights [..., O, I] in a format, with the scales that it needs."""

    def __init__(
        self,
        weight_format: WeightFormat,
        shape: tuple[int, ...],
        tp_group: TensorParallelGroup | None,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.format = weight_format
        self.tp_group: TensorParallelGroup = tp_group or SINGLE_SHARD
        self.weight: Tensor = _frozen(shape, weight_format.stored_dtype)
        if weight_format.stored_dtype is not None:
            setattr(self, weight_format.scale_name, _frozen(weight_format.scale_shape(shape), torch.float32))
        self.bias = _frozen(shape[:1]) if bias else None

    @property
    def scale(self) -> Tensor:
        """fp32 [..., O] or [..., O, G]; see `WeightFormat.encode`."""
        scale: Tensor = getattr(self, self.format.scale_name)
        return scale

    def hold(self, name: str, value: Tensor) -> None:
        """Make `value` the layer's weights, scale or bias `name`, as `encode` returns them. With weights [..., O, I] of
        a floating dtype, which the checkpoint has not converted, the layer is floating."""
        if name == "weight" and self.format.stored_dtype not in (None, value.dtype):
            delattr(self, self.format.scale_name)
            self.format = WeightFormat(self.format.config, value.shape[-1], is_cut=False)
        setattr(self, name, nn.Parameter(value, requires_grad=False))


def product(config: NativeConfig) -> Callable[..., Tensor]:
    """The function of x [R, I], weight [O, I] and bias [O] or None that computes a model's products [R, O], all of one
    floating dtype."""
    return invariant_linear if config.batch_invariant else F.linear


def _frozen(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
