"""int8 weights (`w8`), and int8 activations too (`w8a8`).

A row has one fp32 scale, its largest magnitude ÷ 127: an output channel of weights once, a token in every call. Integer
sums are exact, so a row's result does not depend on the other rows.

Shape suffixes: R rows, S sorted rows, I inputs, O outputs.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lopa_ray.kernels import int8
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.int8 import dequantize
from lopa_ray.kernels.int8_matmul import has_int8_kernel, int8_matmul
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.quantization.weight_format import HeldWeights, WeightFormat
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup


class W8(WeightFormat):
    """Weights are dequantised in each call: on CUDA within the product, elsewhere before it, which saves memory and
    costs time."""

    stored_dtype: ClassVar[torch.dtype | None] = torch.int8
    scale_name: ClassVar[str] = "weight_scale"

    def encode(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        values, scale = int8.quantize_rows(weight.flatten(0, -2))
        return scale.view(weight.shape[:-1]), values.view(weight.shape)

    def product(self, layer: HeldWeights, x: Tensor) -> Tensor:
        if x.is_cuda:
            ends = torch.full((1,), x.shape[0], dtype=torch.int32, device=x.device)
            out = grouped_matmul(x, layer.weight[None], ends).mul_(layer.scale)
            return out if layer.bias is None else out.add_(layer.bias)
        weight = layer.weight.to(x.dtype).mul_(layer.scale.to(x.dtype)[:, None])
        return self.multiply(x, weight, layer.bias)

    def expert_product(self, layer: HeldWeights, x: Tensor, rows: SortedRows) -> Tensor:
        scale = _row_scales(layer, rows)
        out = grouped_matmul(x, layer.weight, rows.ends, batch_invariant=self.config.batch_invariant)
        return out.mul_(scale)


class W8A8(W8):
    """The product is one of integers, and all else is fp32. Up to 133,000 inputs fit its int32."""

    sums_exactly: ClassVar[bool] = True

    def prepare(self, layer: HeldWeights) -> None:
        if layer.weight.dim() == 2:
            has_int8_kernel(layer.weight.device.type, *layer.weight.shape)

    def product(self, layer: HeldWeights, x: Tensor) -> Tensor:
        quantized, scale = quantize_rows(x, layer.tp_group)
        product = layer.tp_group.all_reduce(int8_matmul(quantized, layer.weight))
        return dequantize(product, scale, layer.scale, layer.bias, x.dtype)

    def expert_product(self, layer: HeldWeights, x: Tensor, rows: SortedRows) -> Tensor:
        scale = _row_scales(layer, rows)
        quantized, row_scale = quantize_rows(x, layer.tp_group)
        product = layer.tp_group.all_reduce(grouped_matmul(quantized, layer.weight, rows.ends))
        return product.float().mul_(row_scale[:, None]).mul_(scale).to(x.dtype)


def _row_scales(layer: HeldWeights, rows: SortedRows) -> Tensor:
    return layer.scale[rows.experts.clamp(max=len(layer.scale) - 1)]


def quantize_rows(x: Tensor, tp_group: TensorParallelGroup = SINGLE_SHARD) -> tuple[Tensor, Tensor]:
    """x [R, I] → int8 [R, I] and scales fp32 [R]; their product is off by half a scale at most. `tp_group`: the shards
    that have the rest of each row; all get the scale of the whole row."""
    if tp_group.size == 1:
        return int8.quantize_rows(x)
    wide = x.float()
    return int8.scale_rows(wide, tp_group.all_gather(wide.abs().amax(dim=-1)).amax(dim=0))
