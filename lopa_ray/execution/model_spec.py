"""ModelSpec: what a worker has to know to load its model.

Engines make one, and masters pass it on. Torch takes seconds to import and only workers compute with it, so it is
imported where a size in bytes is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_files import checkpoint_folder, pin_model
from lopa_ray.model.checkpoint_config import load_config
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.special_tokens import MissingMaskTokenError
from lopa_ray.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that a worker needs to load its model, except the weights, which it reads from the checkpoint."""

    config: ExecutionConfig
    """The model and the group, with pinned names; see `pin_model`."""
    model: ModelConfig
    """The architecture of the model that `config` names."""

    @classmethod
    def read(cls, config: ExecutionConfig) -> Self:
        """Read the checkpoint's configuration, and of its tokenizer at most the mask token. Raises CheckpointError."""
        config = ExecutionConfig(model=pin_model(config).model, group=config.group)
        settings = config.model
        folder = checkpoint_folder(settings)
        try:
            model = load_config(folder, settings.implementation)
        except MissingMaskTokenError as error:
            tokenizer = Tokenizer.from_pretrained(folder)
            named = (None if tokenizer is None else tokenizer.mask_token_id, settings.mask_token_id)
            usable = [token_id for token_id in named if token_id is not None and token_id < error.vocab_size]
            if not usable:
                last = f"{error.vocab_size - 1} (the vocabulary)"
                raise CheckpointError(f"{error}, or set model.mask_token_id to one in 0..{last}") from None
            model = load_config(folder, settings.implementation, usable[0])
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
        import torch

        name = self.config.model.dtype
        dtype: torch.dtype = getattr(torch, "float32" if name == "auto" else name)
        return dtype

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all shards."""
        from lopa_ray.model.implementation import weight_bytes

        return weight_bytes(self.model, self.dtype)

    @property
    def slots_bytes(self) -> int:
        """Bytes of the K/V of all positions of all slots, over all shards."""
        settings = self.config.model
        per_position = math.prod(self.model.kv_shape) * self.dtype.itemsize
        return settings.max_num_seqs * settings.max_model_len * per_position

    @property
    def needs_warm_up(self) -> bool:
        """Whether layers or kernels are compiled; workers do that when they load the model, by `warm_up`."""
        return self.config.model.compile or DEVICES[self.config.model.device].compiles_kernels
