"""From a configuration to a `BranchRunner`: weights, device, kernel, graphs."""

from __future__ import annotations

import math

import torch

from lopa_ray.config.config import Config
from lopa_ray.execution.attention_backends import resolve_attention, select_backend
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.warm_up import warm_up
from lopa_ray.model.checkpoint import load_config, read_weights
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.weights import DTYPE_NAMES, Weights, build_model, random_weights, weight_bytes
from lopa_ray.text.tokenizer import Tokenizer

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def load_weights(config: Config, device: torch.device | str) -> Weights:
    """The parameters that a configuration asks for, one by one on `device`. Raises CheckpointError."""
    model = config.model
    dtype = DTYPES[model.dtype]
    if model.load_format == "dummy":
        return random_weights(load_model_config(config), seed=0, dtype=dtype, device=device)
    return read_weights(
        model.folder, dtype=dtype, device=device, lora=model.lora, quantization=model.quantization
    )


def load_model_config(config: Config) -> ModelConfig:
    """The model that a configuration asks for, without its weights. Raises CheckpointError."""
    return load_config(config.model.folder).with_quantization(config.model.quantization)


def model_weight_bytes(config: Config) -> int:
    """Bytes that the weights of the configured model take up, over all shards. Raises CheckpointError."""
    return weight_bytes(load_model_config(config), DTYPES[config.model.dtype])


def slots_bytes(config: Config) -> int:
    """Bytes of the K/V of all slots when they are full, over all shards. Raises CheckpointError."""
    model = config.model
    per_position = math.prod(load_model_config(config).kv_shape) * DTYPES[model.dtype].itemsize
    return model.max_num_seqs * model.max_model_len * per_position


def resolve_model_attention(config: Config) -> str:
    """What `model.attention` auto stands for on this machine. Raises CheckpointError or SettingsError."""
    model, device = config.model, DEVICES[config.model.device]
    device.torch_device()
    shard = load_model_config(config).shard(config.group.tensor_parallel_size)
    return resolve_attention(device, shard, DTYPES[model.dtype], model.max_model_len)


def needs_warm_up(config: Config) -> bool:
    """Whether first steps compile something."""
    return config.model.compile or DEVICES[config.model.device].compiles_kernels


def build_runner(
    config: Config,
    tokenizer: Tokenizer | None,
    weights: Weights | None = None,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> BranchRunner:
    """The runner that a configuration asks for, of `weights` if they are read already. `tp_group` says which shard of
    the model it has; the caller follows `group.tensor_parallel_size`.

    Raises CheckpointError or SettingsError if it cannot be.
    """
    model = config.model
    device = DEVICES[model.device]
    torch_device = device.torch_device()
    model_config, dtype = load_model_config(config), DTYPES[model.dtype]
    if weights is None:
        weights = load_weights(config, torch_device if tp_group.size == 1 else "cpu")
    loaded = build_model(model_config, weights, dtype=dtype, device=torch_device, tp_group=tp_group)
    if model.compile:
        loaded.compile_layers(device.compile_backend)
    # A tokenizer smaller than the embedding means that the rest is padding that cannot be decoded.
    unpadded_vocab_size = None if tokenizer is None else min(tokenizer.vocab_size, model_config.vocab_size)
    runner = BranchRunner(
        loaded,
        max_num_seqs=model.max_num_seqs,
        max_model_len=model.max_model_len,
        unpadded_vocab_size=unpadded_vocab_size,
        attention=select_backend(model.attention, device, loaded.shard_config, dtype, model.max_model_len),
    )
    if needs_warm_up(config) and tp_group.size == 1:  # shards have to be connected first
        warm_up(runner)
    return runner
