"""Models without numbers: their parameters have shapes and dtypes alone, on the meta device or a fake one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import meta_model, storage_dtype


def empty_model(
    config: NativeConfig,
    dtype: torch.dtype,
    device: torch.device,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> Transformer:
    """A native model, or a shard of it, whose parameters have the dtypes in which models store them."""
    with unset_fake_temporarily():
        model = meta_model(config, dtype, tp_group)
    for name, parameter in list(model.named_parameters()):
        _replace(model, name, parameter, storage_dtype(name, parameter, dtype), device)
    model.tie_weights()
    return model.eval()


def empty_on(model: nn.Module, device: torch.device) -> None:
    """Replace all parameters and buffers of a model by empty ones on a device."""
    for name, parameter in list(model.named_parameters()):
        _replace(model, name, parameter, parameter.dtype, device)
    for name, buffer in list(model.named_buffers()):
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = _empty(buffer, buffer.dtype, device)


def _replace(
    model: nn.Module, name: str, parameter: Tensor, dtype: torch.dtype, device: torch.device
) -> None:
    owner, _, attribute = name.rpartition(".")
    replaced = nn.Parameter(_empty(parameter, dtype, device), requires_grad=False)
    setattr(model.get_submodule(owner), attribute, replaced)


def _empty(like: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(like.shape, dtype=dtype, device=device)
