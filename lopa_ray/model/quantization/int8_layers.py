"""Layers with int8 weights (`w8`), and with int8 activations too (`w8a8`).

A row has one fp32 scale, its largest magnitude ÷ 127: an output channel of weights once, a token in every call. Integer
sums are exact, so a row's result does not depend on the rows beside it.

Shape suffixes: R rows, S sorted rows, N experts, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels import int8
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.int8 import dequantize
from lopa_ray.kernels.int8_matmul import has_int8_kernel, int8_matmul
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import product
from lopa_ray.model.quantization.weight_format import QuantizedLayer, Shape, Shards, WeightFormat, frozen
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup


class _Int8Layer(QuantizedLayer):
    stored_dtype: ClassVar[torch.dtype] = torch.int8
    scale_name: ClassVar[str] = "weight_scale"

    def encode(self, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        values, scale = quantize_rows(weight.flatten(0, -2))
        yield "weight_scale", scale.view(weight.shape[:-1])
        yield "weight", values.view(weight.shape)


class Int8Linear(_Int8Layer):
    """A linear layer whose weights are int8 [O, I] with scales fp32 [O]."""

    def __init__(
        self,
        shape: Shape,
        int8_activations: bool,
        *,
        bias: bool,
        tp_group: TensorParallelGroup = SINGLE_SHARD,
        product: Callable[..., Tensor] = F.linear,
    ) -> None:
        """With `int8_activations` the product is one of integers; up to 133,000 inputs fit its int32. `product` is that
        of dequantised weights."""
        super().__init__()
        self._tp_group = tp_group
        self._product = product
        self.int8_activations = int8_activations
        self.weight = frozen(*shape, dtype=torch.int8)
        self.weight_scale = frozen(shape[0], dtype=torch.float32)
        self.bias = nn.Parameter(torch.empty(shape[0])) if bias else None

    def probe_kernel(self) -> None:
        if self.int8_activations:
            has_int8_kernel(self.weight.device.type, *self.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; with int8 activations all but the product is done in fp32. Without them
        weights are dequantised in each call: on CUDA within the product, elsewhere before it, which saves memory and
        costs time."""
        if not self.int8_activations and x.is_cuda:
            ends = torch.full((1,), x.shape[0], dtype=torch.int32, device=x.device)
            out = grouped_matmul(x, self.weight[None], ends).mul_(self.weight_scale)
            return self._tp_group.all_reduce(out if self.bias is None else out.add_(self.bias))
        if not self.int8_activations:
            weight = self.weight.to(x.dtype).mul_(self.weight_scale.to(x.dtype)[:, None])
            return self._tp_group.all_reduce(self._product(x, weight, self.bias))
        quantized, scale = quantize_rows(x, self._tp_group)
        # Integers are summed, so a model in shards gives the bits of the whole one.
        product = self._tp_group.all_reduce(int8_matmul(quantized, self.weight))
        return dequantize(product, scale, self.weight_scale, self.bias, x.dtype)


class Int8ExpertLinear(_Int8Layer):
    """A linear layer per expert, with int8 weights [N, O, I] and scales fp32 [N, O]."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        int8_activations: bool,
        tp_group: TensorParallelGroup,
        batch_invariant: bool,
    ) -> None:
        super().__init__()
        self._batch_invariant = batch_invariant
        self._tp_group = tp_group
        self.int8_activations = int8_activations
        self.weight = frozen(*shape, dtype=torch.int8)
        self.weight_scale = frozen(*shape[:2], dtype=torch.float32)

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O] in the dtype of x."""
        scale = self.weight_scale[rows.experts.clamp(max=len(self.weight_scale) - 1)]
        if not self.int8_activations:
            out = grouped_matmul(x, self.weight, rows.ends, batch_invariant=self._batch_invariant)
            return out.mul_(scale)
        quantized, row_scale = quantize_rows(x, self._tp_group)
        product = self._tp_group.all_reduce(grouped_matmul(quantized, self.weight, rows.ends))
        return product.float().mul_(row_scale[:, None]).mul_(scale).to(x.dtype)


class W8(WeightFormat):
    def linear(
        self, config: NativeConfig, shape: Shape, group: Shards = None, bias: bool = False
    ) -> nn.Module:
        group = group or SINGLE_SHARD
        return Int8Linear(shape, self.sums_exactly, bias=bias, tp_group=group, product=product(config))

    def experts(self, config: NativeConfig, count: int, shape: Shape, group: Shards = None) -> nn.Module:
        # Floating results are summed once for the whole layer.
        group = group if group is not None and self.sums_exactly else SINGLE_SHARD
        return Int8ExpertLinear((count, *shape), self.sums_exactly, group, config.batch_invariant)


class W8A8(W8):
    sums_exactly: ClassVar[bool] = True


def quantize_rows(x: Tensor, tp_group: TensorParallelGroup = SINGLE_SHARD) -> tuple[Tensor, Tensor]:
    """x [R, I] → int8 [R, I] and scales fp32 [R]; their product is off by half a scale at most. `tp_group`: the shards
    that have the rest of each row; all get the scale of the whole row."""
    if tp_group.size == 1:
        return int8.quantize_rows(x)
    wide = x.float()
    return int8.scale_rows(wide, tp_group.all_gather(wide.abs().amax(dim=-1)).amax(dim=0))
