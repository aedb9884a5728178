"""ModelImplementation: how the weights and the model of a `ModelConfig` come to be, whatever runs the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config import ModelShape
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.weights import Weights

ConfigT = TypeVar("ConfigT", bound=ModelShape)


@dataclass(frozen=True, slots=True)
class ModelImplementation(ABC, Generic[ConfigT]):
    """A model in `dtype` on `device`, or a shard of it, which has a part of the weights. Weights that are read or drawn
    are on `device`, or on the CPU where transformers runs the model, which is never cut."""

    config: ConfigT
    dtype: torch.dtype
    device: torch.device | str = "cpu"
    tp_group: TensorParallelGroup = SINGLE_SHARD

    @abstractmethod
    def fitted(self) -> ModelConfig:
        """The same model as it is loaded on the device."""

    @abstractmethod
    def read_weights(
        self, path: str | Path, source: WeightSource = AT_START, *, draft_adapter: Path | None = None
    ) -> Weights:
        """The parameters from the checkpoint folder `path`, or what `source` has in their place, one by one, in the
        names of the model. PEFT adapters of `source` are merged (in fp32) into the published tensors; `draft_adapter`
        is the folder of one that is not (see `DraftAdapter`). Raises `CheckpointError`, naming file and tensor, for
        anything missing, extra, misshapen or unreadable."""

    @abstractmethod
    def random_weights(self, seed: int) -> Weights:
        """Random parameters, which the seed decides; for benchmarks: only shapes matter."""

    @abstractmethod
    def shard_weights(self, weights: Weights) -> Weights:
        """The shard's part of whole parameters, each cut as it is read."""

    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes that the parameters take up, of the shard if there are several."""

    @abstractmethod
    def build_model(self, weights: Weights) -> MaskPredictor:
        """The model in eval mode, without gradients, that holds `weights`, which are the shard's, as they are, and
        never writes to them. Raises CheckpointError if one is missing or transformers computes something else there
        than this project does, and SettingsError if the model cannot be cut like that."""
