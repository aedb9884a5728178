"""Linear layers with int8 weights (`w8`), with int8 activations too (`w8a8`), and with fp8 weights.

Int8 is symmetric: a row has one fp32 scale, its largest magnitude ÷ 127. A row of weights is an output channel, scaled
once; a row of activations is a token, scaled in every call. Nothing but the row itself decides its scale,
and integer sums are exact, so a row's result does not depend on the rows beside it.

Shape suffixes: R rows, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels import int8
from lopa_ray.kernels.fp8 import FP8, fp8_linear, has_fp8_kernel
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.int8 import dequantize
from lopa_ray.kernels.int8_matmul import has_int8_kernel, int8_matmul
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import linear, product
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, RowParallelLinear, TensorParallelGroup


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8 [O, I] with scales fp32 [O]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        int8_activations: bool,
        tp_group: TensorParallelGroup = SINGLE_SHARD,
        product: Callable[..., Tensor] = F.linear,
    ) -> None:
        """With `int8_activations` the product is one of integers; up to 133,000 inputs fit its int32. `product` is that
        of dequantised weights.
        `tp_group`: the shards that have the other inputs, if these are a part of them; then without bias.
        """
        super().__init__()
        self._tp_group = tp_group
        self._product = product
        self.int8_activations = int8_activations
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=torch.int8), requires_grad=False
        )
        self.weight_scale = nn.Parameter(torch.empty(out_features, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; with int8 activations all but the product is done in fp32.

        Without them weights are dequantised in each call: on CUDA within the product, elsewhere before it, which saves
        memory and costs time.
        """
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


class Fp8Linear(nn.Module):
    """A linear layer whose weights are fp8 [O, I] with scales fp32 [O, G], each of `width` inputs.

    Where the checkpoint has not converted the layer, the weights are floating, and there are no scales.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        width: int,
        tp_group: TensorParallelGroup = SINGLE_SHARD,
    ) -> None:
        """`tp_group`: the shards that have the other inputs, if these are a part of them; then without bias."""
        super().__init__()
        self._tp_group = tp_group
        self.width = width
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=FP8), requires_grad=False)
        self.group_scale: nn.Parameter | None = fp8_scales((out_features, in_features), width)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; see `fp8_linear`."""
        if self.group_scale is None:
            return self._tp_group.all_reduce(F.linear(x, self.weight, self.bias))
        out = fp8_linear(x, self.weight, self.group_scale, self.width, self.bias)
        return self._tp_group.all_reduce(out)


def fp8_scales(shape: tuple[int, ...], width: int) -> nn.Parameter:
    """Room for the scales fp32 [..., O, G] of fp8 weights [..., O, I]."""
    *rows, inputs = shape
    return nn.Parameter(torch.empty(*rows, -(-inputs // width), dtype=torch.float32), requires_grad=False)


def probe_kernels(model: nn.Module) -> None:
    """Find out now which products its layers use: the host waits for that, and in a forward a shard may be lost."""
    for layer in model.modules():
        if isinstance(layer, Int8Linear) and layer.int8_activations:
            has_int8_kernel(layer.weight.device.type, *layer.weight.shape)
        if isinstance(layer, Fp8Linear) and layer.group_scale is not None:
            has_fp8_kernel(layer.weight.device.type, *layer.weight.shape, layer.width)


def column_parallel_linear(
    config: NativeConfig, in_features: int, out_features: int, *, bias: bool = False
) -> nn.Module:
    """A linear layer of whose outputs each shard has a part, and all inputs, in the format that `config` names."""
    if config.quantization == "none":
        return linear(config, in_features, out_features, bias=bias)
    if config.fp8 is not None:
        return Fp8Linear(in_features, out_features, bias=bias, width=config.fp8.width(in_features))
    return Int8Linear(
        in_features,
        out_features,
        bias=bias,
        int8_activations=config.quantization == "w8a8",
        product=product(config),
    )


def row_parallel_linear(
    config: NativeConfig, in_features: int, out_features: int, tp_group: TensorParallelGroup
) -> nn.Module:
    """A linear layer of whose inputs each shard has a part (`in_features`), without bias, in the same format."""
    if config.quantization == "none":
        return RowParallelLinear(in_features, out_features, tp_group, product(config))
    if config.fp8 is not None:
        width = config.fp8.width(in_features, cut=True)
        return Fp8Linear(in_features, out_features, bias=False, width=width, tp_group=tp_group)
    int8_activations = config.quantization == "w8a8"
    return Int8Linear(
        in_features,
        out_features,
        bias=False,
        int8_activations=int8_activations,
        tp_group=tp_group,
        product=product(config),
    )


def quantize_rows(x: Tensor, tp_group: TensorParallelGroup = SINGLE_SHARD) -> tuple[Tensor, Tensor]:
    """x [R, I] → int8 [R, I] and scales fp32 [R]; their product is off by half a scale at most.

    `tp_group`: the shards that have the rest of each row; all get the scale of the whole row.
    """
    if tp_group.size == 1:
        return int8.quantize_rows(x)
    wide = x.float()
    return int8.scale_rows(wide, tp_group.all_gather(wide.abs().amax(dim=-1)).amax(dim=0))
