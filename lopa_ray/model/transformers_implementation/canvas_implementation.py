"""CanvasImplementation: models that denoise canvases of random tokens.

Weights have their names in transformers' decoder, and `encoder_layers.N.layer_scalar` for what the encoder has of its
own. All else is the same in both, and checkpoints name it under one of them or under both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.lora import MergedAdapters
from lopa_ray.model.checkpoint.tensor_checks import check_tensors
from lopa_ray.model.checkpoint.tensor_files import find_tensors
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.transformers_implementation.canvas_model import CanvasModel, attend
from lopa_ray.model.transformers_implementation.implementation import TheirImplementation
from lopa_ray.model.transformers_implementation.model import register_attention
from lopa_ray.model.transformers_models.config import make_pretrained_config
from lopa_ray.model.transformers_models.model_config import CanvasConfig
from lopa_ray.model.weights import Weights, check_dtype

_DECODER, _ENCODER = "model.decoder.", "model.encoder.language_model."

_NOT_READ = re.compile(r"model\.encoder\.(vision_tower|embed_vision)\.")
"""Published tensors that images alone need."""

_LM_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class CanvasImplementation(TheirImplementation[CanvasConfig]):
    """The decoder of transformers, which runs for the encoder too, with the encoder's scalars of the layers."""

    def read_weights(
        self, path: str | Path, source: WeightSource = AT_START, *, draft_adapter: Path | None = None
    ) -> Weights:
        """See `ModelImplementation.read_weights`. A tensor of the encoder has to be the decoder's."""
        check_dtype(self.dtype)
        folder = Path(path)
        files = find_tensors(folder, source)
        expected = self._parameters(self._make_empty())
        published = {name: _published_name(name, files.shapes) for name in expected}
        shapes = {published[name]: tuple(tensor.shape) for name, tensor in expected.items()}
        tied = {_LM_HEAD: published[_EMBEDDING]}
        tied |= {
            stored: published[name] for name in published if (stored := f"{_ENCODER}{name}") not in shapes
        }
        check_tensors(
            folder,
            files,
            shapes,
            self.config,
            tied=tied,
            is_ignored=lambda name: _NOT_READ.match(name) is not None,
        )
        adapters = MergedAdapters.load(source, files, shapes)
        names = {stored: name for name, stored in published.items()}
        for stored, tensor in files.read_tensors(list(names)):
            yield names[stored], adapters.merge(stored, tensor).to(self.dtype).clone()

    def build_model(self, weights: Weights) -> MaskPredictor:
        check_dtype(self.dtype)
        self.config.shard(self.tp_group.size)
        tensors = dict(weights)
        missing = [name for name in self._parameters(self._make_empty()) if name not in tensors]
        if missing:
            raise CheckpointError(
                f"cannot make a {self.config.family} model of these weights: {missing[0]} is missing"
            )
        scalars = [tensors.pop(_scalar_name(index)) for index in range(self.config.num_layers)]
        with torch.device("meta"):
            decoder = self._make(self._expert_function())
        decoder.load_state_dict(tensors, assign=True)
        # Computed on the CPU: what a decoder that was made on the meta device has besides its weights.
        decoder.rotary_emb = type(decoder.rotary_emb)(decoder.text_config)
        decoder.embed_tokens.embed_scale = torch.tensor(self.config.hidden_size**0.5)
        model = CanvasModel(self.config, decoder, torch.cat(scalars)).requires_grad_(False)
        return model.to(self.device).eval()

    def _make(self, experts: str | None = None) -> Any:
        from transformers.models.diffusion_gemma import modeling_diffusion_gemma as theirs

        return theirs.DiffusionGemmaDecoderModel._from_config(
            make_pretrained_config(self.config.config_json),
            dtype=self.dtype,
            attn_implementation=register_attention(attend),
            experts_implementation=experts,
        )

    def _parameters(self, model: Any) -> dict[str, Tensor]:
        layers = enumerate(model.layers)
        scalars = {_scalar_name(index): torch.ones_like(layer.layer_scalar) for index, layer in layers}
        return {**scalars, **model.state_dict()}


def _scalar_name(index: int) -> str:
    return f"encoder_layers.{index}.layer_scalar"


def _published_name(name: str, stored: Mapping[str, Any]) -> str:
    if name.startswith("encoder_layers."):
        return f"{_ENCODER}{name.removeprefix('encoder_')}"
    of_encoder_alone = f"{_ENCODER}{name}" in stored and f"{_DECODER}{name}" not in stored
    return f"{_ENCODER if of_encoder_alone and not name.endswith('.layer_scalar') else _DECODER}{name}"
