"""Weights: a model's parameters under this project's names, one at a time, and the model that is built of them.

They may come from a checkpoint's files, from a generator, or from memory that other processes map too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.kernels.fp8 import CUDA_CAPABILITY, FP8, computes_fp8, has_fp8_kernel
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import ExpertLinear, check_places, prepare
from lopa_ray.model.quantization.weight_format import HeldWeights
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, SingleShard, TensorParallelGroup, shard_parameter
from lopa_ray.model.transformer import Transformer

Weights: TypeAlias = Iterator[tuple[str, Tensor]]
"""(own name, tensor) of every parameter, whole or a shard's, in the dtype in which the model stores it."""

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
INIT_STD = 0.02
FP32_PARAMETERS = ("_scale", "router.weight", "router.expert_bias")
TRIAL_SIZE = 512
"""Inputs and outputs of the layer by which it is found out whether a device has products of fp8."""


def build_model(
    config: NativeConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> Transformer:
    """A `Transformer` of `config`, or a shard of it, in eval mode, without gradients, that holds `weights` on `device`.
    Tensors that are there already are used as they are, and never written to.

    Raises CheckpointError if one is missing, and SettingsError if the model cannot be cut like that, has experts in fp8
    that the device cannot unfold, or is to be invariant and this CPU's products are not.
    """
    model = meta_model(config, dtype, tp_group)
    for name, tensor in weights:
        owner, _, attribute = name.rpartition(".")
        layer, held = model.get_submodule(owner), tensor.to(device)
        if isinstance(layer, HeldWeights):
            layer.hold(attribute, held)
        else:
            setattr(layer, attribute, nn.Parameter(held, requires_grad=False))
    model.tie_weights()
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise CheckpointError(f"got no {missing[0]} for the model; {len(missing)} parameters are missing")
    _check_experts(model, torch.device(device))
    prepare(model)
    if config.batch_invariant:
        check_places(model)
    return model.eval()


def fitted(config: NativeConfig, *, dtype: torch.dtype, device: torch.device | str) -> NativeConfig:
    """The same model as it is loaded on `device`: with floating weights in place of the checkpoint's fp8 if that device
    does not multiply it, unless fp8 is demanded."""
    device = torch.device(device)
    if config.fp8 is None or config.fp8.all_layers:
        return config
    may_multiply = device.type == "cuda" and dtype == torch.bfloat16 and computes_fp8(device)
    size, width = TRIAL_SIZE, config.fp8.width(TRIAL_SIZE)
    return config if may_multiply and has_fp8_kernel("cuda", size, size, width) else config.unfolded()


def _check_experts(model: Transformer, device: torch.device) -> None:
    """Raise SettingsError for experts in fp8 on a CUDA device whose kernels have no numbers of fp8."""
    has_experts = any(
        isinstance(layer, ExpertLinear) and layer.format.stored_dtype == FP8 for layer in model.modules()
    )
    if has_experts and device.type == "cuda" and not computes_fp8(device):
        major, minor = CUDA_CAPABILITY
        raise SettingsError(
            f"model.quantization: got 'fp8' for a {model.config.family} model, whose experts are unfolded by a kernel "
            f"that needs a GPU of compute capability {major}.{minor} or more; set it to w8 or w8a8"
        )


def shard_weights(weights: Weights, config: NativeConfig, rank: int, size: int) -> Weights:
    """A shard's part of whole parameters of the model `config`, each cut as it is read; see `shard_parameter`."""
    return ((name, shard_parameter(name, tensor, config, rank, size)) for name, tensor in weights)


def random_weights(
    config: NativeConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """Normal weights (std 0.02), zero biases and unit norms, drawn in fp32 on `device`: the same seed gives the same
    ones on the same kind of device. For benchmarks, where only shapes matter."""
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
        for key, stored in quantize_parameter(model, name, value):
            yield key, stored.to(storage_dtype(key, stored, dtype))


def random_model(
    config: NativeConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Transformer:
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
    """Bytes that the parameters of a model take up, or those of the largest of its shards, which is the first. Layers
    that an fp8 checkpoint has not converted count as if they were."""
    model = meta_model(config, dtype, SingleShard(0, shards))
    return sum(p.numel() * storage_dtype(name, p, dtype).itemsize for name, p in model.named_parameters())


def storage_dtype(name: str, value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, except for weights that are stored in int8 or fp8, and for scales and routers, which are fp32."""
    if value.itemsize == 1:
        return value.dtype
    return torch.float32 if name.endswith(FP32_PARAMETERS) else dtype


def stored_dtype(model: Transformer, name: str) -> torch.dtype | None:
    """The dtype to which the format of the layer converts its weight `name`; None for floating weights, and for any
    other parameter. Raises AttributeError if `model` has no module of that name."""
    owner, _, attribute = name.rpartition(".")
    layer = model.get_submodule(owner)
    return layer.format.stored_dtype if isinstance(layer, HeldWeights) and attribute == "weight" else None


def quantize_parameter(model: Transformer, name: str, value: Tensor) -> Weights:
    """Yield the whole parameter `name` of `model` as the model stores it. A floating weight [..., O, I] of a quantized
    layer becomes two parameters: scales, fp32 [..., O] or [..., O, G], and then the weight. All else stays as it is."""
    owner = name.rpartition(".")[0]
    if stored_dtype(model, name) not in (None, value.dtype):
        weight_format = model.get_submodule(owner).format
        scale, value = weight_format.encode(value)
        yield f"{owner}.{weight_format.scale_name}", scale
    yield name, value
