"""From a configuration to a `BranchRunner`: weights, device, kernel, graphs."""

from __future__ import annotations

import torch

from lopa_ray.config.config import Config
from lopa_ray.execution.attention_kernels import choose_kernel
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint import load_config, read_weights
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.weights import DTYPE_NAMES, Weights, build_model, random_weights, weight_bytes
from lopa_ray.text.tokenizer import Tokenizer

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

WARM_UP_ROWS = (48, 16)
"""Of the forwards that compile layers: int8 products of few rows have graphs of their own."""


def weights_of(config: Config, device: torch.device | str) -> Weights:
    """The parameters that a configuration asks for, one by one on `device`. Raises CheckpointError."""
    model = config.model
    dtype = DTYPES[model.dtype]
    if model.load_format == "dummy":
        return random_weights(shape_of(config), seed=0, dtype=dtype, device=device)
    return read_weights(
        model.folder, dtype=dtype, device=device, lora=model.lora, quantization=model.quantization
    )


def shape_of(config: Config) -> ModelConfig:
    """The model that a configuration asks for, without its weights. Raises CheckpointError."""
    return load_config(config.model.folder).with_quantization(config.model.quantization)


def size_of_weights(config: Config) -> int:
    """Bytes that they take up. Raises CheckpointError."""
    return weight_bytes(shape_of(config), DTYPES[config.model.dtype])


def load_runner(
    config: Config,
    tokenizer: Tokenizer | None,
    weights: Weights | None = None,
    parallel: TensorParallelGroup = SINGLE_SHARD,
) -> BranchRunner:
    """The runner that a configuration asks for, of the `weights` if somebody has read them already. `parallel` says
    which shard of the model it has; `group.tensor_parallel_size` is the business of who makes the shards.

    Raises CheckpointError or SettingsError if it cannot be.
    """
    model = config.model
    device = DEVICES[model.device]
    torch_device = device.require()
    shape, dtype = shape_of(config), DTYPES[model.dtype]
    if weights is None:
        weights = weights_of(config, torch_device if parallel.size == 1 else "cpu")
    loaded = build_model(shape, weights, dtype=dtype, device=torch_device, tp_group=parallel)
    if model.compile:
        loaded.compile_layers(device.compiler)
    # A tokenizer smaller than the embedding means that the rest is padding nobody can decode.
    choosable = None if tokenizer is None else min(tokenizer.vocab_size, shape.vocab_size)
    runner = BranchRunner(
        loaded,
        max_num_seqs=model.max_num_seqs,
        max_model_len=model.max_model_len,
        choosable=choosable,
        kernel=choose_kernel(model.attention, device, loaded.shard_config, dtype),
    )
    if model.compile and parallel.size == 1:  # shards compute together, which is in steps only
        _make_graphs(runner)
    return runner


def _make_graphs(runner: BranchRunner) -> None:
    """Compile now, where nobody waits: a first step that takes minutes would pass for a hung worker."""
    for rows in WARM_UP_ROWS:
        runner.logits([0] * min(rows, runner.cache.capacity))
    runner.cache.reset(0, None)
