"""Builds a `BranchRunner` from a configuration: it loads weights, selects device and attention, and compiles layers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch

from lopa_ray.config.config import Config
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.execution.attention_backends import resolve_attention, select_backend
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.dtype_trial import resolve_dtype
from lopa_ray.execution.model_files import adapter_folder, checkpoint_folder, pin_model
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.warm_up import warm_up
from lopa_ray.model.checkpoint import load_config
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.generation_defaults import GENERATION, read_generation_defaults
from lopa_ray.model.implementation import (
    build_model,
    check_positions,
    random_weights,
    read_weights,
    weight_bytes,
)
from lopa_ray.model.special_tokens import MissingMaskTokenError
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.weights import DTYPE_NAMES, Weights, shard_weights
from lopa_ray.text.tokenizer import Tokenizer

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that a worker needs to load its model, except the weights, which it reads from the checkpoint."""

    config: Config
    """The configuration, with pinned names; see `pin_model`."""
    model: ModelConfig
    """The architecture of the model that `config` names."""

    @classmethod
    def read(cls, config: Config) -> Self:
        """Read the checkpoint's configuration, and of its tokenizer at most the mask token. Raises CheckpointError."""
        config = pin_model(config)
        settings = config.model
        folder = checkpoint_folder(settings)
        try:
            model = load_config(folder, settings.implementation)
        except MissingMaskTokenError as error:
            tokenizer = Tokenizer.from_pretrained(folder)
            found = None if tokenizer is None else tokenizer.mask_token_id
            mask_token_id = settings.mask_token_id if found is None else found
            if mask_token_id is None:
                raise CheckpointError(f"{error}, or set model.mask_token_id") from None
            model = load_config(folder, settings.implementation, mask_token_id)
        model = model.with_quantization(settings.quantization)
        return cls(config, model.with_expert_parallel(config.group.expert_parallel))

    def with_tokenizer(self, tokenizer: Tokenizer | None) -> Self:
        """The same spec, in which ids that the tokenizer does not have are padding. Padding is never chosen."""
        if tokenizer is None:
            return self
        unpadded = min(tokenizer.vocab_size, self.model.vocab_size)
        return replace(self, model=replace(self.model, unpadded_vocab_size=unpadded))

    def with_dtype(self, name: str) -> Self:
        """The same spec with `model.dtype` set to `name`."""
        return replace(self, config=self.config.replace(model=self.config.model.replace(dtype=name)))

    @property
    def has_auto(self) -> bool:
        """Whether a setting is still auto and has to be measured; see `resolve_auto`."""
        model = self.config.model
        timed = DEVICES[model.device].timed_attention
        return model.dtype == "auto" or (model.attention == "auto" and bool(timed))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and K/V. As long as it is auto, this is float32, the larger of the two candidates."""
        return DTYPES.get(self.config.model.dtype, torch.float32)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all shards."""
        return weight_bytes(self.model, self.dtype)

    @property
    def slots_bytes(self) -> int:
        """Bytes of the K/V of all positions of all slots, over all shards."""
        settings = self.config.model
        per_position = math.prod(self.model.kv_shape) * self.dtype.itemsize
        return settings.max_num_seqs * settings.max_model_len * per_position

    @property
    def needs_warm_up(self) -> bool:
        """Whether the first steps compile layers or kernels."""
        return self.config.model.compile or DEVICES[self.config.model.device].compiles_kernels


def open_model(config: Config) -> tuple[ModelSpec, Tokenizer | None]:
    """The spec and the tokenizer (None if there is none) of a configuration's checkpoint. Raises CheckpointError.

    The configuration of the spec has the checkpoint's sampling settings; see `resolve_config`.
    """
    config = resolve_config(config)
    tokenizer = Tokenizer.from_pretrained(checkpoint_folder(config.model))
    return ModelSpec.read(config).with_tokenizer(tokenizer), tokenizer


def resolve_config(config: Config) -> Config:
    """The same configuration with pinned names, in which missing sampling settings are those of the checkpoint.

    Raises CheckpointError.
    """
    config = pin_model(config)
    if config.model.generation_config == "none":
        return config
    folder = checkpoint_folder(config.model)
    try:
        return config.with_decode_defaults(read_generation_defaults(folder))
    except SettingsError as error:
        raise CheckpointError(
            f"{folder / GENERATION}: {error}; correct it, or set model.generation_config to none"
        ) from None


def load_weights(
    spec: ModelSpec, device: torch.device | str, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> Weights:
    """The parameters of the model, or of a shard, in `spec.dtype` on `device`, one by one. Raises CheckpointError."""
    model = spec.config.model
    if model.load_format == "dummy":
        whole = random_weights(spec.model, seed=0, dtype=spec.dtype, device=device)
        return shard_weights(whole, spec.model, tp_group.rank, tp_group.size)
    return read_weights(
        spec.model,
        checkpoint_folder(model, weights=True),
        dtype=spec.dtype,
        device=device,
        lora=adapter_folder(model),
        tp_group=tp_group,
    )


def resolve_auto(spec: ModelSpec) -> ModelSpec:
    """The same spec, in which settings of auto are replaced by the choice for this machine, where it is measured.

    These are `model.dtype`, and `model.attention` on devices whose backends are timed. Raises SettingsError.
    """
    if not spec.has_auto:
        return spec
    device = DEVICES[spec.config.model.device]
    device.torch_device()
    shard = spec.model.shard(spec.config.group.tensor_parallel_size)
    if spec.config.model.dtype == "auto":
        spec = spec.with_dtype(resolve_dtype(device, shard))
    model = spec.config.model
    if model.attention == "auto" and device.timed_attention:
        name = resolve_attention(device, shard, spec.dtype, model.max_model_len)
        spec = replace(spec, config=spec.config.replace(model=model.replace(attention=name)))
    return spec


def build_runner(
    spec: ModelSpec, weights: Weights | None = None, tp_group: TensorParallelGroup = SINGLE_SHARD
) -> BranchRunner:
    """The runner of a model. `weights`, of the whole model, are loaded if they are not given.

    `tp_group` says which shard of the model the runner has. The caller has to ensure that its size is that of
    `group.tensor_parallel_size`. Raises CheckpointError or SettingsError if the model cannot be loaded or run.
    """
    spec = resolve_auto(spec)
    model = spec.config.model
    device = DEVICES[model.device]
    torch_device = device.torch_device()
    if weights is None:
        weights = load_weights(spec, torch_device if tp_group.size == 1 else "cpu", tp_group)
    else:
        weights = shard_weights(weights, spec.model, tp_group.rank, tp_group.size)
    loaded = build_model(spec.model, weights, dtype=spec.dtype, device=torch_device, tp_group=tp_group)
    check_positions(loaded, model.max_model_len)
    if model.compile:
        loaded.compile_layers(device.compile_backend)
    runner = BranchRunner(
        loaded,
        max_num_seqs=model.max_num_seqs,
        max_model_len=model.max_model_len,
        attention=select_backend(
            model.attention, device, loaded.shard_config, spec.dtype, model.max_model_len
        ),
    )
    if spec.needs_warm_up and tp_group.size == 1:  # shards warm up after they are connected
        warm_up(runner)
    return runner
