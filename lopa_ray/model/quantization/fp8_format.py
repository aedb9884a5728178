"""fp8 weights, and scales for groups of inputs as the checkpoint has them (`Fp8Scales`).

Shape suffixes: R rows, S sorted rows, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.fp8 import FP8, by_group, fp8_linear, has_fp8_kernel, quantize_groups
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.weight_format import HeldWeights, WeightFormat


class Fp8(WeightFormat):
    """Scales fp32 [..., O, G], each of `width` inputs. Weights of experts are unfolded within the product."""

    stored_dtype: ClassVar[torch.dtype | None] = FP8
    scale_name: ClassVar[str] = "group_scale"

    def __init__(self, config: NativeConfig, inputs: int, *, is_cut: bool) -> None:
        super().__init__(config, inputs, is_cut=is_cut)
        assert config.fp8 is not None
        self.width = config.fp8.width(inputs, cut=is_cut)

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], -(-shape[-1] // self.width))

    def encode(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows = weight.flatten(0, -2)
        values, scale = quantize_groups(F.pad(rows, (0, -rows.shape[1] % self.width)), self.width)
        values = values[:, : weight.shape[-1]].reshape(weight.shape)
        return scale.unflatten(0, weight.shape[:-1]).contiguous(), values

    def prepare(self, layer: HeldWeights) -> None:
        if layer.weight.dim() == 2:
            layer.hold(self.scale_name, by_group(layer.scale))
            has_fp8_kernel(layer.weight.device.type, *layer.weight.shape, self.width)

    def product(self, layer: HeldWeights, x: Tensor) -> Tensor:
        return fp8_linear(x, layer.weight, layer.scale, self.width, layer.bias)

    def expert_product(self, layer: HeldWeights, x: Tensor, rows: SortedRows) -> Tensor:
        return grouped_matmul(x, layer.weight, rows.ends, layer.scale, self.width)
