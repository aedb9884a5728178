"""Checkpoints on disk, in the layout that Hugging Face publishes, to and from `Transformer`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.kernels.fp8 import FP8
from lopa_ray.model.checkpoint.config_files import CONFIG, load_config
from lopa_ray.model.checkpoint.draft_weights import DRAFT_HEAD_PREFIX
from lopa_ray.model.checkpoint.generation_defaults import GENERATION
from lopa_ray.model.checkpoint.lora import MergedAdapters
from lopa_ray.model.checkpoint.stored_fp8 import SAVED_SCALE_NAME, WEIGHT_DTYPES, StoredFp8
from lopa_ray.model.checkpoint.tensor_checks import check_tensors
from lopa_ray.model.checkpoint.tensor_files import FLOAT_DTYPES, WEIGHTS, TensorFiles, find_tensors
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.config_json.fp8_config import channel_config
from lopa_ray.model.config_json.stored_quantization import KEY as QUANTIZATION_CONFIG
from lopa_ray.model.families.family import Family, published_rows
from lopa_ray.model.families.native import family_of
from lopa_ray.model.quantization.fp8_format import Fp8
from lopa_ray.model.tensor_parallel import is_of_experts
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.weights import (
    DTYPE_NAMES,
    Weights,
    check_dtype,
    meta_model,
    quantize_parameter,
    quantized_format,
    storage_dtype,
)

_log = logging.getLogger("lopa.model")


def read_weights(
    path: str | Path,
    config: NativeConfig,
    source: WeightSource = AT_START,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    experts: range | None = None,
) -> Weights:
    """The parameters of the model `config` from the checkpoint folder `path`, or what `source` has in their place, one
    by one, each read into its final place on `device`, so host memory stays near the size of the model.

    PEFT adapters of `source` are merged (in fp32) into the published tensors. After that linear layers are
    converted to the format of `config`, unless the checkpoint has them in it. fp8 of the checkpoint stays so where no
    adapter changes it, and is unfolded for a `config` without. `experts`: the experts to read; None: all. Raises
    `CheckpointError`, naming file and tensor, for anything missing, extra, misshapen or unreadable, and for a `source`
    that is another model's.
    """
    folder, target = Path(path), config
    config = load_config(folder, mask_token_id=target.mask_token_id)
    family = family_of(config)
    published, model = meta_model(config.unfolded(), dtype), meta_model(target, dtype)
    tensor_files = find_tensors(folder, source)
    stored = StoredFp8.find(config.fp8, tensor_files, _published_shapes(published, family))
    expected = check_published(folder, tensor_files, published, set(stored.beside()))
    _check_same_model(source, config)
    adapters = MergedAdapters.load(source, tensor_files, expected)
    if adapters.adapters and published.config.quantization != "none":
        raise CheckpointError(
            f"{folder}: got the adapter {adapters.adapters[-1].path} for weights that are int8 already; adapters are "
            "merged into floating weights: use the checkpoint that was quantised, with model.quantization"
        )
    if stored.scale_names and model.config.quantization == "none":
        _log.warning(
            "%s: weights in fp8 are unfolded to %s, which takes more memory; products of fp8 are computed on CUDA "
            "devices of compute capability 8.9 or more, in bfloat16",
            folder,
            DTYPE_NAMES[dtype],
        )
    for name, parameter in published.named_parameters():
        parts = published_rows(family, config, name, as_rows(name, parameter).shape[0])
        lead = parameter.shape[:1]
        if is_of_experts(name):
            own = experts or range(parameter.shape[0])
            parts_per_expert = len(parts) // parameter.shape[0]
            parts = dict(list(parts.items())[parts_per_expert * own.start : parts_per_expert * own.stop])
            lead = torch.Size((len(own), parameter.shape[1]))
        kept = {part for part in parts if part in stored and not adapters.changes(part)}
        is_converted = target.conversion != "none" or kept == parts.keys()
        in_fp8 = is_converted and isinstance(quantized_format(model, name), Fp8)
        # One part at a time, each quantised by itself: what is fused is the only full-size allocation.
        fused: dict[str, Tensor] = {}
        stop = 0
        dtypes = WEIGHT_DTYPES if parts.keys() & stored.scale_names.keys() else FLOAT_DTYPES
        if parameter.dtype == torch.int8:
            dtypes = (torch.int8,)
        for part, tensor in tensor_files.read_tensors(parts, dtypes):
            start, stop = stop, stop + parts[part]
            if in_fp8 and part in kept:
                values = stored.kept(name, part, tensor)
            else:
                whole = stored.unfold(part, tensor) if part in stored else tensor
                whole = adapters.merge(part, whole).to(device)
                values = quantize_parameter(model, name, whole) if is_converted else iter([(name, whole)])
            for key, value in values:
                if key not in fused:
                    kept_as = storage_dtype(key, value, dtype)
                    fused[key] = torch.empty((*lead, *value.shape[1:]), dtype=kept_as, device=device)
                as_rows(key, fused[key])[start:stop].copy_(value)
        yield from fused.items()


def _check_same_model(source: WeightSource, config: NativeConfig) -> None:
    """Raise CheckpointError if the folder of `source` has a config.json that describes another model, but for special
    tokens: a model that runs keeps its own."""
    if source.folder is None or not (source.folder / CONFIG).exists():
        return
    other = load_config(source.folder, mask_token_id=config.mask_token_id)
    for name in sorted(entry.name for entry in fields(config)):
        got, have = getattr(other, name), getattr(config, name)
        if got != have and not name.endswith(("_token_id", "_token_ids")):
            raise CheckpointError(
                f"{source.folder / CONFIG}: got {name} = {got!r}, and the model that runs has {have!r}; use weights of "
                "the same model, or start an engine with this one"
            )


def save_model(model: Transformer, path: str | Path, *, dtype: torch.dtype) -> None:
    """Write `model` to the folder `path` as a published checkpoint with weights in `dtype`: config.json,
    generation_config.json and one model.safetensors, without a draft head. The file is moved into place, so an
    interrupted save leaves the old one whole. Weights in fp8 have the layout of compressed-tensors, with a scale per
    channel. Raises CheckpointError for a model whose fp8 has other scales, and for a dtype that is not supported."""
    check_dtype(dtype)
    if model.config.fp8 is not None and model.config.fp8.block is not None:
        raise CheckpointError(
            f"{path}: got a model with weights in fp8 that have a scale per block, which are not saved; load it on the "
            "CPU without quantization, where they are unfolded, or with quantization w8 or w8a8"
        )
    folder, family = Path(path), family_of(model.config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name.startswith(DRAFT_HEAD_PREFIX):  # it has a file of its own
            continue
        rows = as_rows(name, parameter.detach())
        parts = published_rows(family, model.config, name, rows.shape[0])
        for part, piece in zip(parts, rows.split(list(parts.values())), strict=True):
            # A contiguous copy of its own: safetensors refuses tensors that share memory.
            tensors[part.replace(".group_scale", f".{SAVED_SCALE_NAME}")] = piece.to(
                device="cpu", dtype=storage_dtype(name, piece, dtype), copy=True
            ).contiguous()
    unfinished = folder / f".{WEIGHTS}.tmp"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, folder / WEIGHTS)
    raw = family.to_config_json(model.config) | {"torch_dtype": DTYPE_NAMES[dtype]}
    if model.config.fp8 is not None:
        floating = {name for name, tensor in tensors.items() if tensor.dim() == 2 and tensor.dtype != FP8}
        raw[QUANTIZATION_CONFIG] = channel_config(
            name.removesuffix(".weight") for name in floating if name.endswith(".weight")
        )
    generation = {key: value for key, value in raw.items() if key.endswith("_token_id")}
    if model.config.stop_token_ids:
        generation["eos_token_id"] = [model.config.eos_token_id, *model.config.stop_token_ids]
    for file, content in ((CONFIG, raw), (GENERATION, generation)):
        (folder / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def as_rows(name: str, parameter: Tensor) -> Tensor:
    """A view of the parameter `name` as rows, in its dtype. One that stacks experts, [N, O, I], becomes [N · O, I]."""
    return parameter.flatten(0, 1) if is_of_experts(name) else parameter


def _published_shapes(model: Transformer, family: Family) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        rows = as_rows(name, parameter)
        parts = published_rows(family, model.config, name, rows.shape[0])
        shapes |= {part: (count, *rows.shape[1:]) for part, count in parts.items()}
    return shapes


def check_published(
    folder: Path, tensor_files: TensorFiles, model: Transformer, scales: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """The published tensors of `model` and their shapes. Raises `CheckpointError` unless `tensor_files` has exactly
    these tensors; ignored buffers and `scales` may also be present."""
    config, family = model.config, family_of(model.config)
    expected, tied = _published_shapes(model, family), {}
    if config.tie_word_embeddings:
        (head,), (embed,) = family.published_names("lm_head.weight"), family.published_names("embed.weight")
        tied[head] = embed

    def is_ignored(name: str) -> bool:
        return name in scales or family.ignores(name)

    check_tensors(folder, tensor_files, expected, config, tied=tied, is_ignored=is_ignored)
    return expected
