"""Layers with fp8 weights, and scales for groups of inputs as the checkpoint has them (`Fp8Scales`).

Shape suffixes: R rows, S sorted rows, N experts, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.kernels.fp8 import FP8, by_group, fp8_linear, has_fp8_kernel, quantize_groups
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.weight_format import QuantizedLayer, Shape, Shards, WeightFormat, frozen
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup


class Fp8Layer(QuantizedLayer):
    """Weights fp8 [..., O, I] and scales fp32 [..., O, G], each of `width` inputs. Where the checkpoint has not
    converted the layer, the weights are floating, and there are no scales."""

    stored_dtype: ClassVar[torch.dtype] = FP8
    scale_name: ClassVar[str] = "group_scale"

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        """`shape`: [O, I], or [N, O, I]."""
        super().__init__()
        *rows, inputs = shape
        self.width = width
        self.weight = frozen(*shape, dtype=FP8)
        self.group_scale: nn.Parameter | None = frozen(*rows, -(-inputs // width), dtype=torch.float32)

    def encode(self, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        rows = weight.flatten(0, -2)
        values, scale = quantize_groups(F.pad(rows, (0, -rows.shape[1] % self.width)), self.width)
        yield "group_scale", scale.unflatten(0, weight.shape[:-1]).contiguous()
        yield "weight", values[:, : weight.shape[-1]].reshape(weight.shape)

    def hold(self, attribute: str, value: Tensor) -> None:
        if attribute == "weight" and value.dtype != FP8:
            self.group_scale = None
        super().hold(attribute, value)


class Fp8Linear(Fp8Layer):
    """A linear layer, or the part of one that has some of its inputs."""

    def __init__(
        self, shape: Shape, width: int, *, bias: bool, tp_group: TensorParallelGroup = SINGLE_SHARD
    ) -> None:
        super().__init__(shape, width)
        self._tp_group = tp_group
        self.bias = nn.Parameter(torch.empty(shape[0])) if bias else None

    def hold(self, attribute: str, value: Tensor) -> None:
        super().hold(attribute, by_group(value) if attribute == "group_scale" else value)

    def probe_kernel(self) -> None:
        if self.group_scale is not None:
            has_fp8_kernel(self.weight.device.type, *self.weight.shape, self.width)

    def forward(self, x: Tensor) -> Tensor:
        """x [R, I] → [R, O] in the dtype of x; see `fp8_linear`."""
        if self.group_scale is None:
            return self._tp_group.all_reduce(F.linear(x, self.weight, self.bias))
        out = fp8_linear(x, self.weight, self.group_scale, self.width, self.bias)
        return self._tp_group.all_reduce(out)


class Fp8ExpertLinear(Fp8Layer):
    """A linear layer per expert, whose weights are unfolded to the dtype of its rows within the product."""

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x."""
        return grouped_matmul(x, self.weight, rows.ends, self.group_scale, self.width)


class Fp8(WeightFormat):
    def linear(
        self, config: NativeConfig, shape: Shape, group: Shards = None, bias: bool = False
    ) -> nn.Module:
        assert config.fp8 is not None
        width = config.fp8.width(shape[1], cut=group is not None)
        return Fp8Linear(shape, width, bias=bias, tp_group=group or SINGLE_SHARD)

    def experts(self, config: NativeConfig, count: int, shape: Shape, group: Shards = None) -> nn.Module:
        assert config.fp8 is not None
        return Fp8ExpertLinear((count, *shape), config.fp8.width(shape[1], cut=group is not None))
