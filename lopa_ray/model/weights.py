"""Weights: a model's parameters under this project's names, one at a time, and how the model stores each.

They may come from a checkpoint's files, from a generator, or from memory that other processes map too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.quantization.weight_format import HeldWeights, WeightFormat
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.transformer import Transformer

Weights: TypeAlias = Iterator[tuple[str, Tensor]]
"""(own name, tensor) of every parameter, whole or a shard's, in the dtype in which the model stores it."""

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
FP32_PARAMETERS = ("_scale", "router.weight", "router.expert_bias")


def host_copies(tensors: Mapping[str, Tensor]) -> Weights:
    """Copies of tensors, [...] in any dtype, on the CPU: a trainer may change the originals. Raises SettingsError for
    another value than a tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise SettingsError(
                f"source: got {type(tensor).__name__} for {name}; need tensors", setting="source"
            )
        yield name, tensor.detach().to("cpu", copy=True)


def meta_model(
    config: NativeConfig, dtype: torch.dtype, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> Transformer:
    """The module with every parameter on the meta device. Raises CheckpointError for a dtype that is not supported."""
    check_dtype(dtype)
    with torch.device("meta"):
        return Transformer(config, tp_group)


def check_dtype(dtype: torch.dtype) -> None:
    """Raises CheckpointError for a dtype that weights are not stored in."""
    if dtype not in DTYPE_NAMES:
        allowed = ", ".join(DTYPE_NAMES.values())
        raise CheckpointError(f"got dtype {dtype} for weights; allowed are {allowed}; choose one of them")


def storage_dtype(name: str, value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a parameter [...]: `dtype`, except for weights that are stored in int8 or fp8, and for scales and
    routers, which are fp32."""
    if value.itemsize == 1:
        return value.dtype
    return torch.float32 if name.endswith(FP32_PARAMETERS) else dtype


def quantized_format(model: Transformer, name: str) -> WeightFormat | None:
    """The format that stores the weight `name` in a dtype of its own; None for floating weights, and for any other
    parameter. Raises AttributeError if `model` has no module of that name."""
    owner, _, attribute = name.rpartition(".")
    layer = model.get_submodule(owner)
    if isinstance(layer, HeldWeights) and attribute == "weight" and layer.format.stored_dtype is not None:
        return layer.format
    return None


def quantize_parameter(model: Transformer, name: str, value: Tensor) -> Weights:
    """Yield the whole parameter `name` of `model` as the model stores it. A floating weight [..., O, I] of a quantized
    layer becomes two parameters: scales, fp32 [..., O] or [..., O, G], and then the weight. All else stays as it is."""
    weight_format = quantized_format(model, name)
    if weight_format is not None and value.dtype != weight_format.stored_dtype:
        scale, value = weight_format.encode(value)
        yield f"{name.removesuffix('weight')}{weight_format.scale_name}", scale
    yield name, value
