"""Weights of models that denoise canvases of random tokens: read, drawn, counted, and built into a `CanvasModel`.

Names are those of transformers' decoder, and `encoder_layers.N.layer_scalar` for what the encoder has of its own. All
else is the same in both, and checkpoints name it under one of them or under both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lopa_ray.errors import CheckpointError
from lopa_ray.model.canvas_model import CanvasModel, register_canvas_attention
from lopa_ray.model.checkpoint import check_expected, check_tied, find_tensors, refuse_extra
from lopa_ray.model.config import CanvasConfig
from lopa_ray.model.lora import LoraAdapter
from lopa_ray.model.transformers_config import make_pretrained_config
from lopa_ray.model.transformers_experts import register_padded_experts
from lopa_ray.model.weights import Weights, check_dtype

_DECODER, _ENCODER = "model.decoder.", "model.encoder.language_model."

_NOT_READ = re.compile(r"model\.encoder\.(vision_tower|embed_vision)\.")
"""Published tensors that images alone need."""

_LM_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def _scalar_name(index: int) -> str:
    return f"encoder_layers.{index}.layer_scalar"


def read_weights(
    config: CanvasConfig, path: str | Path, *, dtype: torch.dtype, lora: str | Path | None = None
) -> Weights:
    """The parameters of `config` from the checkpoint folder `path`, one by one on the CPU.

    `lora` names a PEFT adapter folder that is merged (in fp32) into the published tensors.
    Raises CheckpointError, naming file and tensor, for anything missing, extra, misshapen or unreadable, and for a
    tensor of the encoder that differs from the decoder's.
    """
    check_dtype(dtype)
    folder = Path(path)
    files = find_tensors(folder)
    published = _published_names(config, dtype, files.shapes)
    shapes = {published[name]: tuple(tensor.shape) for name, tensor in _expected(config, dtype).items()}
    check_expected(folder, files, shapes, config)
    tied = {_LM_HEAD: published[_EMBEDDING]} if _LM_HEAD in files.shapes else {}
    tied |= {
        stored: published[name]
        for name in published
        if (stored := f"{_ENCODER}{name}") in files.shapes and stored not in shapes
    }
    others = [name for name in files.shapes if name not in shapes and name not in tied]
    refuse_extra(folder, files, [name for name in others if not _NOT_READ.match(name)], config)
    for copy, source in tied.items():
        check_tied(files, copy, source)
    adapter = LoraAdapter.load(lora) if lora is not None else None
    if adapter is not None:
        adapter.check_shapes(shapes)
    names = {stored: name for name, stored in published.items()}
    for stored, tensor in files.read_tensors(list(names)):
        merged = tensor if adapter is None else adapter.merge(stored, tensor)
        yield names[stored], merged.to(dtype).clone()


def random_weights(config: CanvasConfig, seed: int, dtype: torch.dtype) -> Weights:
    """Random weights on the CPU as the class of transformers initialises them, which the seed decides."""
    check_dtype(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = _make_decoder(config, dtype)
    for index in range(config.num_layers):
        yield _scalar_name(index), torch.ones(1, dtype=dtype)
    tensors: dict[str, Tensor] = {**decoder.state_dict()}
    decoder.to("meta")
    for name in list(tensors):
        yield name, tensors.pop(name)


def weight_bytes(config: CanvasConfig, dtype: torch.dtype) -> int:
    """Bytes that the parameters of a model take up."""
    check_dtype(dtype)
    return sum(tensor.numel() * tensor.itemsize for tensor in _expected(config, dtype).values())


def build_model(
    config: CanvasConfig, weights: Weights, *, dtype: torch.dtype, device: torch.device | str
) -> CanvasModel:
    """A `CanvasModel` in eval mode, without gradients, that holds `weights` on `device`.

    `weights` lie on the CPU, where they are used as they are, and never written to. Raises CheckpointError if one is
    missing.
    """
    check_dtype(dtype)
    tensors = dict(weights)
    missing = [name for name in _expected(config, dtype) if name not in tensors]
    if missing:
        raise CheckpointError(
            f"cannot make a {config.family} model of these weights: {missing[0]} is missing"
        )
    scalars = [tensors.pop(_scalar_name(index)) for index in range(config.num_layers)]
    # Elsewhere bits depend on the batch anyway, and its size would have to wait for the device.
    experts = register_padded_experts() if torch.device(device).type == "cpu" else None
    with torch.device("meta"):
        decoder = _make_decoder(config, dtype, experts)
    decoder.load_state_dict(tensors, assign=True)
    _make_buffers(decoder)
    model = CanvasModel(config, decoder, torch.cat(scalars)).requires_grad_(False)
    return model.to(device).eval()


def _make_buffers(decoder: Any) -> None:
    """Compute on the CPU what a decoder that was made on the meta device has besides its weights."""
    config = decoder.text_config
    decoder.rotary_emb = type(decoder.rotary_emb)(config)
    decoder.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)


def _make_decoder(config: CanvasConfig, dtype: torch.dtype, experts: str | None = None) -> Any:
    from transformers.models.diffusion_gemma import modeling_diffusion_gemma as theirs

    return theirs.DiffusionGemmaDecoderModel._from_config(
        make_pretrained_config(config.config_json),
        dtype=dtype,
        attn_implementation=register_canvas_attention(),
        experts_implementation=experts,
    )


def _expected(config: CanvasConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """All parameters by name, on the meta device."""
    with torch.device("meta"):
        decoder: nn.Module = _make_decoder(config, dtype)
        scalars = {_scalar_name(index): torch.ones(1, dtype=dtype) for index in range(config.num_layers)}
    return {**decoder.state_dict(), **scalars}


def _published_names(config: CanvasConfig, dtype: torch.dtype, stored: Mapping[str, Any]) -> dict[str, str]:
    """Name → published name: the decoder's, or the encoder's where only that is stored."""

    def names() -> Iterator[tuple[str, str]]:
        for name in _expected(config, dtype):
            if name.startswith("encoder_layers."):
                yield name, f"{_ENCODER}{name.removeprefix('encoder_')}"
            elif f"{_ENCODER}{name}" in stored and not name.endswith(".layer_scalar"):
                yield name, f"{_DECODER if f'{_DECODER}{name}' in stored else _ENCODER}{name}"
            else:
                yield name, f"{_DECODER}{name}"

    return dict(names())
