"""Weights and models of a `ModelConfig`: of this project's own transformer, or of the package transformers."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.model import canvas_weights, checkpoint, transformers_weights, weights as native_weights
from lopa_ray.model.config import CanvasConfig, ModelConfig, TransformersConfig
from lopa_ray.model.draft_adapter import read_draft_adapter
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.tensor_parallel import (
    SINGLE_SHARD,
    TensorParallelGroup,
    is_of_experts,
    own_experts,
    shard_parameter,
)
from lopa_ray.model.weights import Weights


def fitted(config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> ModelConfig:
    """The same model as it is loaded on `device`; see `weights.fitted`."""
    if isinstance(config, TransformersConfig):
        return config
    return native_weights.fitted(config, dtype=dtype, device=device)


def read_weights(
    config: ModelConfig,
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    lora: str | Path | None = None,
    draft_adapter: Path | None = None,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> Weights:
    """The parameters of `config` from the checkpoint folder `path`, one by one, in the names of the model, or a shard's
    part of them. Experts that the shard has nothing of are not read.

    They are on `device`, or on the CPU where transformers runs the model: `build_model` moves them. `lora` names a
    PEFT adapter folder that is merged (in fp32) into the published tensors; `draft_adapter` is the folder of one
    that is not (see `DraftAdapter`), for native models.
    Raises `CheckpointError`, naming file and tensor, for anything missing, extra, misshapen or unreadable.
    """
    if isinstance(config, CanvasConfig):
        return canvas_weights.read_weights(config, path, dtype=dtype, lora=lora)
    if isinstance(config, TransformersConfig):
        return transformers_weights.read_weights(config, path, dtype=dtype, lora=lora)
    rank, size = tp_group.rank, tp_group.size
    experts = own_experts(config.experts, rank, size) if config.experts is not None else None
    weights = checkpoint.read_weights(
        path,
        dtype=dtype,
        device=device,
        lora=lora,
        quantization=config.conversion,
        keep_fp8=config.fp8 is not None,
        mask_token_id=config.mask_token_id,
        experts=experts,
    )
    if draft_adapter is not None:
        weights = chain(weights, read_draft_adapter(config, draft_adapter, dtype=dtype, device=device))
    if config.experts is None or not config.experts.are_whole(size):
        return native_weights.shard_weights(weights, config, rank, size)
    return (
        (name, tensor if is_of_experts(name) else shard_parameter(name, tensor, config, rank, size))
        for name, tensor in weights
    )


def random_weights(
    config: ModelConfig,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> Weights:
    """Random parameters, which the seed decides, where `read_weights` puts them; for benchmarks: only shapes matter."""
    if isinstance(config, CanvasConfig):
        return canvas_weights.random_weights(config, seed, dtype)
    if isinstance(config, TransformersConfig):
        return transformers_weights.random_weights(config, seed, dtype)
    weights = native_weights.random_weights(config, seed, dtype, device)
    return native_weights.shard_weights(weights, config, tp_group.rank, tp_group.size)


def shard_weights(weights: Weights, config: ModelConfig, tp_group: TensorParallelGroup) -> Weights:
    """A shard's part of whole parameters, each cut as it is read. Models that transformers runs are not cut."""
    if isinstance(config, TransformersConfig):
        return weights
    return native_weights.shard_weights(weights, config, tp_group.rank, tp_group.size)


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that the parameters of a model take up."""
    if isinstance(config, CanvasConfig):
        return canvas_weights.weight_bytes(config, dtype)
    if isinstance(config, TransformersConfig):
        return transformers_weights.weight_bytes(config, dtype)
    return native_weights.weight_bytes(config, dtype)


def build_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> MaskPredictor:
    """The model `config` in eval mode, without gradients, that holds `weights` on `device`, or a shard of it, whose
    weights they are.

    Tensors that are there already are used as they are, and never written to.
    Raises CheckpointError if one is missing or transformers computes something else there than this project does, and
    SettingsError if the model cannot be cut like that.
    """
    if isinstance(config, TransformersConfig):
        config.shard(tp_group.size)
        if isinstance(config, CanvasConfig):
            return canvas_weights.build_model(config, weights, dtype=dtype, device=device)
        return transformers_weights.build_model(config, weights, dtype=dtype, device=device)
    return native_weights.build_model(config, weights, dtype=dtype, device=device, tp_group=tp_group)


def check_positions(model: MaskPredictor, count: int) -> None:
    """Raise SettingsError for a model that has embeddings for fewer positions than `count`."""
    limit = model.learned_positions
    if limit is not None and count > limit:
        raise SettingsError(
            f"model.max_model_len: got {count} for a {model.config.family} model, which has {limit} positions; lower it"
        )
