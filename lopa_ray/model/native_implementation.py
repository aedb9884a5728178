"""NativeImplementation: models that this project's own transformer runs, and `load_model`, which makes one at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.kernels.fp8 import CUDA_CAPABILITY, FP8, computes_fp8, has_fp8_kernel
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.draft_weights import with_draft_adapter, with_draft_head
from lopa_ray.model.checkpoint.native_checkpoint import read_weights
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config import NativeConfig, Quantization
from lopa_ray.model.hub.repository import download
from lopa_ray.model.linear import ExpertLinear, check_places, prepare
from lopa_ray.model.model_implementation import ModelImplementation
from lopa_ray.model.quantization.weight_format import HeldWeights
from lopa_ray.model.tensor_parallel import is_of_experts, own_experts, shard_parameter
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import Weights, meta_model, quantize_parameter, storage_dtype

INIT_STD = 0.02
TRIAL_SIZE = 512
"""Inputs and outputs of the layer by which it is found out whether a device has products of fp8."""


class NativeImplementation(ModelImplementation[NativeConfig]):
    """This project's own transformer. Experts that a shard has nothing of are not read."""

    def fitted(self) -> NativeConfig:
        """The configuration with floating weights, not the checkpoint's fp8, if the device does not multiply fp8,
        unless demanded."""
        device, fp8 = torch.device(self.device), self.config.fp8
        if fp8 is None or fp8.all_layers:
            return self.config
        may_multiply = device.type == "cuda" and self.dtype == torch.bfloat16 and computes_fp8(device)
        multiplies = may_multiply and has_fp8_kernel("cuda", TRIAL_SIZE, TRIAL_SIZE, fp8.width(TRIAL_SIZE))
        return self.config if multiplies else self.config.unfolded()

    def read_weights(
        self, path: str | Path, source: WeightSource = AT_START, *, draft_adapter: Path | None = None
    ) -> Weights:
        config, rank, size = self.config, self.tp_group.rank, self.tp_group.size
        experts = None if config.experts is None else own_experts(config.experts, rank, size)
        place: Any = {"dtype": self.dtype, "device": self.device}
        weights = read_weights(path, config, source, **place, experts=experts)
        if draft_adapter is not None:
            weights = with_draft_adapter(weights, config, draft_adapter, **place)
        if config.draft_head is not None:
            weights = with_draft_head(weights, config, Path(path), **place)
        reads_own = config.experts is not None and config.experts.are_whole(size)
        for name, tensor in weights:
            is_cut = reads_own and is_of_experts(name)
            yield name, tensor if is_cut else shard_parameter(name, tensor, config, rank, size)

    def random_weights(self, seed: int) -> Weights:
        """Normal weights (std 0.02), zero biases and unit norms, drawn in fp32 on the device: the same seed gives the
        same weights on the same kind of device."""
        return self.shard_weights(self._whole_random_weights(seed))

    def _whole_random_weights(self, seed: int) -> Weights:
        dtype, device = self.dtype, self.device
        model, floating = meta_model(self.config, dtype), replace(self.config, quantization="none")
        generator = torch.Generator(device=device).manual_seed(seed)
        for name, parameter in meta_model(floating, dtype).named_parameters():
            if name.endswith("bias"):
                value = torch.zeros(parameter.shape, dtype=dtype, device=device)
            elif parameter.dim() == 1:
                value = torch.ones(parameter.shape, dtype=dtype, device=device)
            else:
                value = torch.empty(parameter.shape, dtype=torch.float32, device=device)
                value = value.normal_(std=INIT_STD, generator=generator)
            for key, stored in quantize_parameter(model, name, value):
                yield key, stored.to(storage_dtype(key, stored, dtype))

    def shard_weights(self, weights: Weights) -> Weights:
        rank, size = self.tp_group.rank, self.tp_group.size
        return ((name, shard_parameter(name, tensor, self.config, rank, size)) for name, tensor in weights)

    def weight_bytes(self) -> int:
        """Layers that an fp8 checkpoint has not converted count as if they were."""
        parameters = meta_model(self.config, self.dtype, self.tp_group).named_parameters()
        return sum(p.numel() * storage_dtype(name, p, self.dtype).itemsize for name, p in parameters)

    def build_model(self, weights: Weights) -> Transformer:
        """Raises SettingsError also for experts in fp8 that the device cannot unfold, and for a model that is to be
        invariant where this CPU's products are not."""
        model = meta_model(self.config, self.dtype, self.tp_group)
        for name, tensor in weights:
            owner, _, attribute = name.rpartition(".")
            layer, held = model.get_submodule(owner), tensor.to(self.device)
            if isinstance(layer, HeldWeights):
                layer.hold(attribute, held)
            else:
                setattr(layer, attribute, nn.Parameter(held, requires_grad=False))
        model.tie_weights()
        missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        if missing:
            raise CheckpointError(f"got no {missing[0]} for the model; {len(missing)} parameters are missing")
        _check_experts(model, torch.device(self.device))
        prepare(model)
        if self.config.batch_invariant:
            check_places(model)
        return model.eval()


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    lora: str | Path | None = None,
    quantization: Quantization = "none",
) -> Transformer:
    """Load the checkpoint `path` in `dtype` on `device`, in eval mode, without gradients. `path` and `lora` are folders
    or names on the Hub. See `read_weights` for `lora` and what is raised; `quantization` is the format of the linear
    layers."""
    path = download(str(path), weights=True)
    source = AT_START if lora is None else WeightSource(loras=(download(str(lora), weights=True),))
    config = load_config(path).with_quantization(quantization)
    implementation = NativeImplementation(config, dtype, device)
    implementation = NativeImplementation(implementation.fitted(), dtype, device)
    return implementation.build_model(implementation.read_weights(path, source))


def _check_experts(model: Transformer, device: torch.device) -> None:
    experts = (layer for layer in model.modules() if isinstance(layer, ExpertLinear))
    has_fp8_experts = any(layer.format.stored_dtype == FP8 for layer in experts)
    if has_fp8_experts and device.type == "cuda" and not computes_fp8(device):
        major, minor = CUDA_CAPABILITY
        raise SettingsError(
            f"model.quantization: got 'fp8' for a {model.config.family} model, whose experts are unfolded by a kernel "
            f"that needs a GPU of compute capability {major}.{minor} or more; set it to w8 or w8a8"
        )
