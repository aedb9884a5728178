"""Weights: a model's parameters under this project's names, one at a time, and the model that is built of them.

They may come from a checkpoint's files, from a generator, or from memory that other processes map too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.kernels.fp8 import CUDA_CAPABILITY, FP8, by_group, computes_fp8, has_fp8_kernel, quantize_groups
from lopa_ray.model.config import Fp8Scales, NativeConfig
from lopa_ray.model.experts import Fp8ExpertLinear, Int8ExpertLinear
from lopa_ray.model.linear import check_places
from lopa_ray.model.quantized import Fp8Linear, Int8Linear, probe_kernels, quantize_rows
from lopa_ray.model.router import Router
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, SingleShard, TensorParallelGroup, shard_parameter
from lopa_ray.model.transformer import Transformer

Weights: TypeAlias = Iterator[tuple[str, Tensor]]
"""(own name, tensor) of every parameter, whole or a shard's, in the dtype in which the model stores it."""

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
INIT_STD = 0.02
TRIAL_SIZE = 512
"""Inputs and outputs of the layer by which it is found out whether a device has products of fp8."""
INT8_LAYERS = (Int8Linear, Int8ExpertLinear)
FP8_LAYERS = (Fp8Linear, Fp8ExpertLinear)


def build_model(
    config: NativeConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> Transformer:
    """A `Transformer` of `config` in eval mode, without gradients, that holds `weights` on `device`, or a shard of it,
    whose weights they are.

    Tensors that are there already are used as they are, and never written to.
    Raises CheckpointError if one is missing, and SettingsError if the model cannot be cut like that, has experts in fp8
    that the device cannot unfold, or is to be invariant and this CPU's products are not.
    """
    model = meta_model(config, dtype, tp_group)
    for name, tensor in weights:
        _set_parameter(model, name, tensor.to(device))
    model.tie_weights()
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise CheckpointError(f"got no {missing[0]} for the model; {len(missing)} parameters are missing")
    _check_experts(model, torch.device(device))
    probe_kernels(model)
    if config.batch_invariant:
        check_places(model)
    return model.eval()


def fitted(config: NativeConfig, *, dtype: torch.dtype, device: torch.device | str) -> NativeConfig:
    """The same model as it is loaded on `device`: with floating weights in place of the checkpoint's fp8 if that device
    does not multiply it, unless fp8 is demanded."""
    if (
        config.fp8 is None
        or config.fp8.all_layers
        or _has_fp8_products(config.fp8, dtype, torch.device(device))
    ):
        return config
    return config.unfolded()


def _check_experts(model: Transformer, device: torch.device) -> None:
    """Raise SettingsError for experts in fp8 on a CUDA device whose kernels have no numbers of fp8."""
    has_experts = any(
        isinstance(layer, Fp8ExpertLinear) and layer.group_scale is not None for layer in model.modules()
    )
    if has_experts and device.type == "cuda" and not computes_fp8(device):
        major, minor = CUDA_CAPABILITY
        raise SettingsError(
            f"model.quantization: got 'fp8' for a {model.config.family} model, whose experts are unfolded by a kernel "
            f"that needs a GPU of compute capability {major}.{minor} or more; set it to w8 or w8a8"
        )


def _has_fp8_products(scales: Fp8Scales, dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cuda" or dtype != torch.bfloat16 or not computes_fp8(device):
        return False
    return has_fp8_kernel(device.type, TRIAL_SIZE, TRIAL_SIZE, scales.width(TRIAL_SIZE))


def shard_weights(weights: Weights, config: NativeConfig, rank: int, size: int) -> Weights:
    """A shard's part of whole parameters of the model `config`, each cut as it is read; see `shard_parameter`."""
    return ((name, shard_parameter(name, tensor, config, rank, size)) for name, tensor in weights)


def random_weights(
    config: NativeConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """Normal weights (std 0.02), zero biases and unit norms.

    Drawn in fp32 on `device` and then cast: the same seed gives the same weights on the same kind
    of device. For benchmarks, where only shapes matter.
    """
    model = meta_model(config, dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in meta_model(replace(config, quantization="none"), dtype).named_parameters():
        if name.endswith("bias"):
            value = torch.zeros(parameter.shape, dtype=dtype, device=device)
        elif parameter.dim() == 1:
            value = torch.ones(parameter.shape, dtype=dtype, device=device)
        else:
            value = torch.empty(parameter.shape, dtype=torch.float32, device=device)
            value = value.normal_(std=INIT_STD, generator=generator)
            value = value.to(storage_dtype(model, name, parameter, dtype))
        yield from quantize_parameter(model, name, value, to_fp8=is_fp8_weight(model, name))


def random_model(
    config: NativeConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Transformer:
    """A model with `random_weights`."""
    return build_model(config, random_weights(config, seed, dtype, device), dtype=dtype, device=device)


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


def weight_bytes(config: NativeConfig, dtype: torch.dtype, shards: int = 1) -> int:
    """Bytes that the parameters of a model take up, or those of the largest of its shards, which is the first.

    Layers that an fp8 checkpoint has not converted count as if they were.
    """
    model = meta_model(config, dtype, SingleShard(0, shards))
    return sum(
        p.numel() * storage_dtype(model, name, p, dtype).itemsize for name, p in model.named_parameters()
    )


def storage_dtype(model: Transformer, name: str, value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, except for the weights [O, I] of int8 layers (int8 once quantised, fp32 until then and for their
    scales), for fp8 weights and their scales, and for routers, which are fp32."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if isinstance(module, INT8_LAYERS) and attribute != "bias":
        return torch.int8 if value.dtype == torch.int8 else torch.float32
    if isinstance(module, FP8_LAYERS) and value.dtype == FP8:
        return FP8
    is_wide = isinstance(module, Router) or attribute == "group_scale"
    return torch.float32 if is_wide else dtype


def quantize_parameter(model: Transformer, name: str, value: Tensor, *, to_fp8: bool) -> Weights:
    """Yield one parameter of `model` as the model stores it.

    `name` is the parameter's own name in `model`, `value` the whole parameter. A floating weight [..., O, I] of an int8
    layer becomes two parameters: the scales, fp32 [..., O], as `weight_scale`, and then the weight, int8 [..., O, I].
    With `to_fp8` that of an fp8 layer becomes its scales, fp32 [..., O, G], as `group_scale`, and then fp8. All else
    stays as it is. Raises AttributeError if `model` has no module of that name.
    """
    owner, _, attribute = name.rpartition(".")
    layer, shape = model.get_submodule(owner), value.shape
    if isinstance(layer, INT8_LAYERS) and attribute == "weight" and value.dtype != torch.int8:
        value, scale = quantize_rows(value.flatten(0, -2))
        value = value.view(shape)
        yield f"{owner}.weight_scale", scale.view(shape[:-1])
    elif to_fp8:
        assert isinstance(layer, FP8_LAYERS)
        rows = value.flatten(0, -2)
        value, scale = quantize_groups(F.pad(rows, (0, -rows.shape[1] % layer.width)), layer.width)
        value = value[:, : shape[-1]].reshape(shape)
        yield f"{owner}.group_scale", scale.unflatten(0, shape[:-1]).contiguous()
    yield name, value


def is_fp8_weight(model: Transformer, name: str) -> bool:
    """Whether the parameter `name` of `model` is the weight of a layer that may have it in fp8."""
    owner, _, attribute = name.rpartition(".")
    return attribute == "weight" and isinstance(model.get_submodule(owner), FP8_LAYERS)


def _set_parameter(model: Transformer, name: str, value: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if isinstance(module, FP8_LAYERS) and attribute == "weight" and value.dtype != FP8:
        module.group_scale = None
    if isinstance(module, Fp8Linear) and attribute == "group_scale":
        value = by_group(value)
    setattr(module, attribute, nn.Parameter(value, requires_grad=False))
