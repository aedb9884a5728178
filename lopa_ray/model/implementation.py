"""The implementations of models: this project's own transformer, and modules of the package transformers."""

from __future__ import annotations

from typing import Any

import torch

from lopa_ray.errors import SettingsError
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.model_implementation import ModelImplementation
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.transformers_implementation.canvas_implementation import CanvasImplementation
from lopa_ray.model.transformers_implementation.implementation import TransformersImplementation
from lopa_ray.model.transformers_models.model_config import CanvasConfig, TransformersConfig

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
    """The implementation that makes the model `config` in `dtype` on `device`, or a shard of it."""
    implementation: ModelImplementation[Any] = _IMPLEMENTATIONS[type(config)](config, dtype, device, tp_group)
    return implementation


def check_positions(model: MaskPredictor, count: int) -> None:
    """Raise SettingsError for a model that has embeddings for fewer positions than `count`."""
    limit = model.learned_positions
    if limit is not None and count > limit:
        raise SettingsError(
            f"model.max_model_len: got {count} for a {model.config.family} model, which has {limit} positions; lower it"
        )
