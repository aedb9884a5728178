"""Linear layers with int8 weights (`w8`), and with int8 activations too (`w8a8`).

Symmetric: a row has one fp32 scale, its largest magnitude ÷ 127. A row of weights is an output channel, scaled
once; a row of activations is a token, scaled in every call. Nothing but the row itself decides its scale,
and integer sums are exact, so a row's result does not depend on the rows beside it.

Shape suffixes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels import int8
from lopa_ray.kernels.int8 import INT8_MAX, dequantize, exact_matmul
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, RowParallelLinear, TensorParallelGroup

MIN_KERNEL_ROWS = 32
"""CUDA's kernel takes more than 16 rows."""

_log = logging.getLogger("lopa.quantized")


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
    ) -> None:
        """With `int8_activations` the product is one of integers; up to 133,000 inputs fit its int32.
        `tp_group`: the shards that have the other inputs, if these are a part of them; then without bias.
        """
        super().__init__()
        self._tp_group = tp_group
        self.int8_activations = int8_activations
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=torch.int8), requires_grad=False
        )
        self.weight_scale = nn.Parameter(torch.empty(out_features, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; with int8 activations all but the product is done in fp32.

        Without them weights are dequantised in each call: that saves memory, and costs time.
        """
        if not self.int8_activations:
            weight = self.weight.to(x.dtype).mul_(self.weight_scale.to(x.dtype)[:, None])
            return self._tp_group.all_reduce(F.linear(x, weight, self.bias))
        quantized, scale = quantize_rows(x, self._tp_group)
        # Integers are summed, so a model in shards gives the bits of the whole one.
        product = self._tp_group.all_reduce(int8_matmul(quantized, self.weight))
        return dequantize(product, scale, self.weight_scale, self.bias, x.dtype)


def probe_int8_kernels(model: nn.Module) -> None:
    """Find out now which products its layers use: the host waits for that, and in a forward a shard may be lost."""
    for layer in model.modules():
        if isinstance(layer, Int8Linear) and layer.int8_activations:
            has_int8_kernel(layer.weight.device.type, *layer.weight.shape)


def column_parallel_linear(
    config: ModelConfig, in_features: int, out_features: int, *, bias: bool = False
) -> nn.Module:
    """A linear layer of whose outputs each shard has a part, and all inputs, in the format that `config` names."""
    if config.quantization == "none":
        return nn.Linear(in_features, out_features, bias=bias)
    return Int8Linear(in_features, out_features, bias=bias, int8_activations=config.quantization == "w8a8")


def row_parallel_linear(
    config: ModelConfig, in_features: int, out_features: int, tp_group: TensorParallelGroup
) -> nn.Module:
    """A linear layer of whose inputs each shard has a part (`in_features`), without bias, in the same format."""
    if config.quantization == "none":
        return RowParallelLinear(in_features, out_features, tp_group)
    int8_activations = config.quantization == "w8a8"
    return Int8Linear(
        in_features, out_features, bias=False, int8_activations=int8_activations, tp_group=tp_group
    )


def quantize_rows(x: Tensor, tp_group: TensorParallelGroup = SINGLE_SHARD) -> tuple[Tensor, Tensor]:
    """x [R, I] → int8 [R, I] and scales fp32 [R]; their product is off by half a scale at most.

    `tp_group`: the shards that have the rest of each row; all get the scale of the whole row.
    """
    if tp_group.size == 1:
        return int8.quantize_rows(x)
    wide = x.float()
    return int8.scale_rows(wide, tp_group.all_gather(wide.abs().amax(dim=-1)).amax(dim=0))


def int8_matmul(a: Tensor, weight: Tensor) -> Tensor:
    """int8 [R, I] times the transpose of int8 [O, I] → exact int32 [R, O], by the device's kernel if it has one."""
    if not has_int8_kernel(a.device.type, *weight.shape):
        return exact_matmul(a, weight)
    rows = a.shape[0]
    if rows < MIN_KERNEL_ROWS:
        a = F.pad(a, (0, 0, 0, MIN_KERNEL_ROWS - rows))
    return torch._int_mm(a, weight.t())[:rows]


@cache
def has_int8_kernel(device: str, out_features: int, in_features: int) -> bool:
    """Whether torch's int8 product runs on that kind of device for weights [O, I], and is exact.

    Tried once per shape, on the largest numbers: some kernels want sizes that are multiples of 8, and those
    for CPUs without 8-bit dot products may saturate.
    """
    a = torch.full((MIN_KERNEL_ROWS, in_features), INT8_MAX, dtype=torch.int8, device=device)
    weight = torch.full((out_features, in_features), -INT8_MAX, dtype=torch.int8, device=device)
    try:
        exact = bool((torch._int_mm(a, weight.t()) == -INT8_MAX * INT8_MAX * in_features).all())
        reason = "it saturates"
    except RuntimeError as error:
        exact, reason = False, str(error).splitlines()[0]
    if not exact:
        _log.warning(
            "int8 product on %s for weights [%d, %d] by way of fp32: %s",
            device,
            out_features,
            in_features,
            reason,
        )
    return exact
