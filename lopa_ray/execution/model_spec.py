"""ModelSpec: all that a worker needs to load its model. Engines make one, and masters pass it on.

Torch takes seconds to import and only workers compute with it, so it is imported where sizes in bytes are asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_files import (
    checkpoint_folder,
    draft_adapter_folder,
    naming_what_was_meant,
    pin_model,
)
from lopa_ray.model.checkpoint.config_files import draft_head_shape, draft_widths, load_config
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.config_json.special_tokens import MissingMaskTokenError
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch


def resolve_dtype(settings: ModelSettings) -> str:
    """The name of the dtype: `model.dtype`, or what auto stands for on the model's device."""
    return DEVICES[settings.device].auto_dtype if settings.dtype == "auto" else settings.dtype


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The data that a worker needs to load its model, except the weights, which it reads from the checkpoint."""

    config: ExecutionConfig  # with pinned names (see `pin_model`) and the dtype that auto stands for
    model: ModelConfig
    weights: WeightSource = AT_START

    @classmethod
    def read(cls, config: ExecutionConfig) -> Self:
        """Read the checkpoint's configuration, and of its tokenizer at most the mask token. Raises CheckpointError."""
        pinned = pin_model(config)
        with naming_what_was_meant(config.model.path):
            return cls._read(pinned)

    @classmethod
    def _read(cls, config: ExecutionConfig) -> Self:
        settings = config.model
        settings = settings.replace(dtype=resolve_dtype(settings))
        if settings.batch_invariant and settings.attention == "auto" and settings.device == "cuda":
            settings = settings.replace(attention="triton")  # flash-attn's order may depend on the batch
        config = ExecutionConfig(model=settings, group=config.group)
        folder = checkpoint_folder(settings)
        try:
            model = load_config(folder, settings.implementation)
        except MissingMaskTokenError as error:
            tokenizer = Tokenizer.from_pretrained(folder)
            named = (None if tokenizer is None else tokenizer.mask_token_id, settings.mask_token_id)
            usable = [token_id for token_id in named if token_id is not None and token_id < error.vocab_size]
            if not usable:
                last = f"{error.vocab_size - 1} (the vocabulary)"
                raise CheckpointError(
                    f"{settings.path}: neither its configuration nor its tokenizer has a mask token, as in "
                    "autoregressive models, which vLLM and SGLang run; for a diffusion language model set "
                    f"model.mask_token_id to one in 0..{last}"
                ) from None
            model = load_config(folder, settings.implementation, usable[0])
        model = model.with_quantization(settings.quantization)
        multiplies_fp8 = DEVICES[settings.device].multiplies_fp8 and settings.dtype == "bfloat16"
        if settings.quantization == "none" and not multiplies_fp8:
            model = model.unfolded()
        model = model.with_batch_invariant(settings.batch_invariant)
        adapter = draft_adapter_folder(settings)
        if adapter is not None:
            model = model.with_draft_adapter(draft_widths(adapter, model))
        if isinstance(model, NativeConfig) and settings.load_format != "dummy":
            model = replace(model, draft_head=draft_head_shape(folder))
        return cls(config, model.with_expert_parallel(config.group.expert_parallel))

    def with_tokenizer(self, tokenizer: Tokenizer | None) -> Self:
        """Ids that the tokenizer does not have are padding, which is never chosen."""
        if tokenizer is None:
            return self
        unpadded = min(tokenizer.vocab_size, self.model.vocab_size)
        return replace(self, model=replace(self.model, unpadded_vocab_size=unpadded))

    @property
    def has_auto(self) -> bool:
        """Whether something depends on the worker's device; see `resolve_auto`."""
        stored = self.model.quantization == "fp8" and self.config.model.quantization == "none"
        return self.has_auto_attention or stored

    @property
    def has_auto_attention(self) -> bool:
        model = self.config.model
        return model.attention == "auto" and bool(DEVICES[model.device].timed_attention)

    @property
    def dtype(self) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self.config.model.dtype)
        return dtype

    @property
    def weight_bytes(self) -> int:
        from lopa_ray.model.implementation import implementation_of

        return implementation_of(self.model, self.dtype).weight_bytes()

    @property
    def slots_bytes(self) -> int:
        """Bytes of the K/V of all positions of all slots, over all shards."""
        settings = self.config.model
        per_position = math.prod(self.model.kv_shape) * self.dtype.itemsize
        return settings.max_num_seqs * (settings.max_model_len + self.model.canvas_length) * per_position

    @property
    def needs_warm_up(self) -> bool:
        return DEVICES[self.config.model.device].compiles_kernels
