"""The implementations of models: this project's own transformer, and modules of the package transformers."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.model import weights as native_weights
from lopa_ray.model.checkpoint import native_checkpoint as checkpoint
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.draft_adapter import read_draft_adapter
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.model_implementation import ModelImplementation
from lopa_ray.model.tensor_parallel import (
    SINGLE_SHARD,
    TensorParallelGroup,
    is_of_experts,
    own_experts,
    shard_parameter,
)
from lopa_ray.model.transformers_models.canvas_implementation import CanvasImplementation
from lopa_ray.model.transformers_models.implementation import TransformersImplementation
from lopa_ray.model.transformers_models.model_config import CanvasConfig, TransformersConfig
from lopa_ray.model.weights import Weights


class NativeImplementation(ModelImplementation[NativeConfig]):
    """This project's own transformer. Experts that a shard has nothing of are not read."""

    def fitted(self) -> ModelConfig:
        return native_weights.fitted(self.config, dtype=self.dtype, device=self.device)

    def read_weights(
        self, path: str | Path, *, lora: str | Path | None = None, draft_adapter: Path | None = None
    ) -> Weights:
        config, rank, size = self.config, self.tp_group.rank, self.tp_group.size
        weights = checkpoint.read_weights(
            path,
            dtype=self.dtype,
            device=self.device,
            lora=lora,
            quantization=config.conversion,
            keep_fp8=config.fp8 is not None,
            mask_token_id=config.mask_token_id,
            experts=None if config.experts is None else own_experts(config.experts, rank, size),
        )
        if draft_adapter is not None:
            adapter = read_draft_adapter(config, draft_adapter, dtype=self.dtype, device=self.device)
            weights = chain(weights, adapter)
        reads_own = config.experts is not None and config.experts.are_whole(size)
        for name, tensor in weights:
            is_cut = reads_own and is_of_experts(name)
            yield name, tensor if is_cut else shard_parameter(name, tensor, config, rank, size)

    def random_weights(self, seed: int) -> Weights:
        weights = native_weights.random_weights(self.config, seed, self.dtype, self.device)
        return self.shard_weights(weights)

    def shard_weights(self, weights: Weights) -> Weights:
        return native_weights.shard_weights(weights, self.config, self.tp_group.rank, self.tp_group.size)

    def weight_bytes(self) -> int:
        return native_weights.weight_bytes(self.config, self.dtype)

    def build_model(self, weights: Weights) -> MaskPredictor:
        return native_weights.build_model(
            self.config, weights, dtype=self.dtype, device=self.device, tp_group=self.tp_group
        )


_IMPLEMENTATIONS: dict[type, Any] = {
    NativeConfig: NativeImplementation,
    TransformersConfig: TransformersImplementation,
    CanvasConfig: CanvasImplementation,
}


def implementation_of(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    tp_group: TensorParallelGroup = SINGLE_SHARD,
) -> ModelImplementation[Any]:
    """What makes the model `config` in `dtype` on `device`, or a shard of it."""
    implementation: ModelImplementation[Any] = _IMPLEMENTATIONS[type(config)](config, dtype, device, tp_group)
    return implementation


def check_positions(model: MaskPredictor, count: int) -> None:
    """Raise SettingsError for a model that has embeddings for fewer positions than `count`."""
    limit = model.learned_positions
    if limit is not None and count > limit:
        raise SettingsError(
            f"model.max_model_len: got {count} for a {model.config.family} model, which has {limit} positions; lower it"
        )
