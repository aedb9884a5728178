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

from lopa_ray.model.config import ModelConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, SummedLinear, TensorParallelGroup

LARGEST = 127

EXACT_INPUTS = 1024
"""So many products of int8 numbers add up to less than 2^24: fp32 holds every partial sum, in any order."""

MIN_ROWS = 32
"""CUDA's kernel takes more than 16 rows."""

_log = logging.getLogger("lopa.quantized")


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8 [O, I] with scales fp32 [O]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        activations: bool,
        summed: TensorParallelGroup = SINGLE_SHARD,
    ) -> None:
        """`activations`: they are int8 too, and the product is one of integers. Up to 133,000 inputs fit its int32.
        `summed`: the shards that have the other inputs, if these are a part of them; then without bias.
        """
        super().__init__()
        self._summed = summed
        self.activations = activations
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(outputs, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; with int8 activations all but the product is done in fp32.

        Without them weights are unfolded for each call: that saves memory, and costs time.
        """
        if not self.activations:
            weight = self.weight.to(x.dtype).mul_(self.weight_scale.to(x.dtype)[:, None])
            return self._summed.all_reduce(F.linear(x, weight, self.bias))
        whole, scale = quantize_rows(x, self._summed)
        # Integers are summed, so a model in shards gives the bits of the whole one.
        product = self._summed.all_reduce(int8_matmul(whole, self.weight))
        out = product.float().mul_(scale[:, None]).mul_(self.weight_scale)
        return (out if self.bias is None else out.add_(self.bias)).to(x.dtype)


def layer_linear(config: ModelConfig, inputs: int, outputs: int, *, bias: bool = False) -> nn.Module:
    """A linear layer of the transformer's layers, in the format that `config` names."""
    if config.quantization == "none":
        return nn.Linear(inputs, outputs, bias=bias)
    return Int8Linear(inputs, outputs, bias=bias, activations=config.quantization == "w8a8")


def summed_linear(config: ModelConfig, inputs: int, outputs: int, parallel: TensorParallelGroup) -> nn.Module:
    """The same, where `inputs` is what this shard has of them; without bias."""
    if config.quantization == "none":
        return SummedLinear(inputs, outputs, parallel)
    activations = config.quantization == "w8a8"
    return Int8Linear(inputs, outputs, bias=False, activations=activations, summed=parallel)


def quantize_rows(x: Tensor, parallel: TensorParallelGroup = SINGLE_SHARD) -> tuple[Tensor, Tensor]:
    """x [R, I] → int8 [R, I] and scales fp32 [R]; their product is off by half a scale at most.

    `parallel`: the shards that have the rest of each row; all get the scale of the whole row.
    """
    wide = x.float()
    largest = parallel.all_gather(wide.abs().amax(dim=-1)).amax(dim=0)
    # A row of zeros keeps a scale to divide by.
    scale = (largest / LARGEST).clamp_min_(torch.finfo(torch.float32).tiny)
    return (wide / scale[:, None]).round_().to(torch.int8), scale


def int8_matmul(a: Tensor, weight: Tensor) -> Tensor:
    """int8 [R, I] times the transpose of int8 [O, I] → exact int32 [R, O], by the device's kernel if it has one."""
    if not has_int8_kernel(a.device.type, *weight.shape):
        return exact_matmul(a, weight)
    rows = a.shape[0]
    if rows < MIN_ROWS:
        a = F.pad(a, (0, 0, 0, MIN_ROWS - rows))
    return torch._int_mm(a, weight.t())[:rows]


def exact_matmul(a: Tensor, weight: Tensor) -> Tensor:
    """The same on any device that multiplies fp32, in pieces that it adds up exactly."""
    out = torch.zeros(a.shape[0], weight.shape[0], dtype=torch.int32, device=a.device)
    pieces = (torch.split(matrix, EXACT_INPUTS, dim=1) for matrix in (a, weight))
    for left, right in zip(*pieces, strict=True):
        out += (left.float() @ right.float().t()).to(torch.int32)
    return out


@cache
def has_int8_kernel(device: str, outputs: int, inputs: int) -> bool:
    """Whether torch's int8 product runs on that kind of device for weights [O, I], and is exact.

    Tried once per shape, on the largest numbers: some kernels want sizes that are multiples of 8, and those
    for CPUs without 8-bit dot products may saturate.
    """
    a = torch.full((MIN_ROWS, inputs), LARGEST, dtype=torch.int8, device=device)
    weight = torch.full((outputs, inputs), -LARGEST, dtype=torch.int8, device=device)
    try:
        exact = bool((torch._int_mm(a, weight.t()) == -LARGEST * LARGEST * inputs).all())
        why = "it saturates"
    except RuntimeError as error:
        exact, why = False, str(error).splitlines()[0]
    if not exact:
        _log.warning(
            "int8 product on %s for weights [%d, %d] by way of fp32: %s", device, outputs, inputs, why
        )
    return exact
