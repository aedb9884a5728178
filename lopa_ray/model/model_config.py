"""ModelConfig: the configuration of a model, whatever runs it."""

from __future__ import annotations

from typing import TypeAlias

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformers_models.model_config import TransformersConfig

ModelConfig: TypeAlias = NativeConfig | TransformersConfig
