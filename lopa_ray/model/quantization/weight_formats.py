"""All formats of weights, by `NativeConfig.quantization`."""

from __future__ import annotations

from torch import nn

from lopa_ray.model.config import NativeConfig, Quantization
from lopa_ray.model.linear import Floating
from lopa_ray.model.quantization.fp8_layers import Fp8
from lopa_ray.model.quantization.int8_layers import W8, W8A8
from lopa_ray.model.quantization.weight_format import QuantizedLayer, WeightFormat

FORMATS: dict[Quantization, WeightFormat] = {"none": Floating(), "w8": W8(), "w8a8": W8A8(), "fp8": Fp8()}


def format_of(config: NativeConfig) -> WeightFormat:
    return FORMATS[config.quantization]


def probe_kernels(model: nn.Module) -> None:
    """Find out now which products its layers use; see `QuantizedLayer.probe_kernel`."""
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            layer.probe_kernel()
