"""Checkpoints on disk, in the layout that Hugging Face publishes, to and from `Transformer`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config import ModelConfig, Quantization
from lopa_ray.model.families import family_of, find_family
from lopa_ray.model.family import Family, fused_rows
from lopa_ray.model.files import FLOATS, TensorFiles, read_json
from lopa_ray.model.lora import LoraAdapter
from lopa_ray.model.quantized import Int8Linear, quantize_rows
from lopa_ray.model.transformer import Transformer

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
INIT_STD = 0.02

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def load_config(path: str | Path) -> ModelConfig:
    """Read the `ModelConfig` of the checkpoint folder `path`, without its weights.

    Raises `CheckpointError` for a missing or broken file, an unknown architecture, or a feature
    that this project does not compute.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such folder; need a downloaded checkpoint: a folder with {CONFIG}"
        )
    raw = read_json(folder / CONFIG)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).exists() else {}
    where = str(folder / CONFIG)
    return find_family(raw, where).read(raw, generation, where)


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    lora: str | Path | None = None,
    quantization: Quantization = "none",
) -> Transformer:
    """Load the checkpoint folder `path` in `dtype` on `device`, in eval mode, without gradients.

    `lora` names a PEFT adapter folder that is merged (in fp32) into the published tensors.
    `quantization` makes the linear layers int8 after that; with none they are as the checkpoint has them.
    Tensors are read one by one into their final place, so host memory stays near the size of the model.
    Raises `CheckpointError`, naming file and tensor, for anything missing, extra, misshapen or unreadable.
    """
    folder = Path(path)
    config = load_config(folder)
    family = family_of(config)
    stored = _empty_model(config, dtype)
    model = _empty_model(config.quantized(quantization), dtype)
    source = _find_tensors(folder)
    wanted = _published_shapes(stored, family)
    _check_tensors(folder, source, wanted, family, config)
    adapter = LoraAdapter.load(lora) if lora is not None else None
    if adapter is not None:
        if config.quantization != "none":
            raise CheckpointError(
                f"{folder}: got the adapter {lora} for weights that are int8 already; adapters are merged into "
                "floating weights: use the checkpoint that was quantised, with model.quantization"
            )
        adapter.check(wanted)
    for name, parameter in stored.named_parameters():
        # One part at a time: the fused parameter is the only full-size allocation.
        whole = torch.empty(parameter.shape, dtype=_held_as(model, name, parameter, dtype), device=device)
        row = 0
        for part in family.parts(name):
            tensor = source.read(part, (torch.int8,) if parameter.dtype == torch.int8 else FLOATS)
            if adapter is not None:
                tensor = adapter.merge(part, tensor)
            whole.narrow(0, row, tensor.shape[0]).copy_(tensor)
            row += tensor.shape[0]
        _place(model, name, whole)
    return _finish(model)


def random_model(
    config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> Transformer:
    """A `Transformer` of `config` with normal weights (std 0.02), zero biases and unit norms.

    Drawn in fp32 on `device` and then cast: the same seed gives the same weights on the same kind
    of device. For benchmarks, where only shapes matter.
    """
    model = _empty_model(config, dtype)
    floating = _empty_model(replace(config, quantization="none"), dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in floating.named_parameters():
        held_as = _held_as(model, name, parameter, dtype)
        if name.endswith("bias"):
            whole = torch.zeros(parameter.shape, dtype=dtype, device=device)
        elif parameter.dim() == 1:
            whole = torch.ones(parameter.shape, dtype=dtype, device=device)
        else:
            whole = torch.empty(parameter.shape, dtype=torch.float32, device=device)
            whole = whole.normal_(std=INIT_STD, generator=generator).to(held_as)
        _place(model, name, whole)
    return _finish(model)


def save_model(model: Transformer, path: str | Path, *, dtype: torch.dtype) -> None:
    """Write `model` to the folder `path` as a published checkpoint with weights in `dtype`.

    Writes config.json, generation_config.json and one model.safetensors with published names. The
    weights are written beside and moved into place, so an interrupted save leaves the old ones whole.
    """
    if dtype not in _DTYPES:
        allowed = ", ".join(_DTYPES.values())
        raise CheckpointError(f"got dtype {dtype} to save in; allowed are {allowed}; choose one of them")
    folder, family = Path(path), family_of(model.config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        rows = fused_rows(model.config, name) or (parameter.shape[0],)
        for part, piece in zip(family.parts(name), torch.split(parameter.detach(), list(rows)), strict=True):
            # A contiguous copy of its own: safetensors refuses tensors that share memory.
            held_as = _held_as(model, name, piece, dtype)
            tensors[part] = piece.to(device="cpu", dtype=held_as, copy=True).contiguous()
    unfinished = folder / f".{WEIGHTS}.tmp"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, folder / WEIGHTS)
    raw = family.write(model.config) | {"torch_dtype": _DTYPES[dtype]}
    generation = {key: value for key, value in raw.items() if key.endswith("_token_id")}
    if model.config.stop_token_ids:
        generation["eos_token_id"] = [model.config.eos_token_id, *model.config.stop_token_ids]
    for file, content in ((CONFIG, raw), (GENERATION, generation)):
        (folder / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _empty_model(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    """The module without memory: every parameter is on the meta device."""
    if dtype not in _DTYPES:
        allowed = ", ".join(_DTYPES.values())
        raise CheckpointError(f"got dtype {dtype} for the model; allowed are {allowed}; choose one of them")
    with torch.device("meta"):
        return Transformer(config)


def _held_as(model: Transformer, name: str, value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, but for the weights of int8 layers: int8 once quantised, fp32 until then and for their scales."""
    owner, _, attribute = name.rpartition(".")
    if isinstance(model.get_submodule(owner), Int8Linear) and attribute != "bias":
        return torch.int8 if value.dtype == torch.int8 else torch.float32
    return dtype


def _place(model: Transformer, name: str, value: Tensor) -> None:
    """Make `value` a parameter; floating weights of an int8 layer are quantised."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if isinstance(module, Int8Linear) and attribute == "weight" and value.dtype != torch.int8:
        value, scale = quantize_rows(value)
        module.weight_scale = nn.Parameter(scale, requires_grad=False)
    setattr(module, attribute, nn.Parameter(value, requires_grad=False))


def _finish(model: Transformer) -> Transformer:
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.embed.weight
    return model.eval()


def _find_tensors(folder: Path) -> TensorFiles:
    """The weight files of `folder`: one file, or the shards that its index lists."""
    if (folder / WEIGHTS).exists():
        return TensorFiles.scan([folder / WEIGHTS])
    if not (folder / INDEX).exists():
        others = sorted(
            file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".gguf")
        )
        got = f" (got {', '.join(others)}, which are not loaded)" if others else ""
        raise CheckpointError(
            f"{folder}: got neither {WEIGHTS} nor {INDEX}{got}; weights load from safetensors only"
        )
    index = folder / INDEX
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(
            f"{index}: got weight_map = {listed!r}, need tensor names and files; download it again"
        )
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index}: tensor {name} is listed in {file!r}; need a file name in this folder"
            )
    source = TensorFiles.scan(sorted({folder / file for file in listed.values()}))
    for name, file in listed.items():
        if source.files.get(name) != folder / file:
            raise CheckpointError(
                f"{folder / file}: tensor {name} is not in it, though {INDEX} says so; "
                f"shard and index are of different versions: download both again"
            )
    return source


def _published_shapes(model: Transformer, family: Family) -> dict[str, tuple[int, ...]]:
    """Published tensor name -> the shape it must have."""

    def each() -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, parameter in model.named_parameters():
            rows = fused_rows(model.config, name) or (parameter.shape[0],)
            for part, count in zip(family.parts(name), rows, strict=True):
                yield part, (count, *parameter.shape[1:])

    return dict(each())


def _check_tensors(
    folder: Path, source: TensorFiles, wanted: dict[str, tuple[int, ...]], family: Family, config: ModelConfig
) -> None:
    """Raise unless `source` has exactly the tensors `wanted`, bar what may be left aside."""
    missing = [name for name in wanted if name not in source.shapes]
    if missing:
        where = next(iter(sorted(set(source.files.values()))), folder / WEIGHTS)
        place = where if len(set(source.files.values())) < 2 else folder / INDEX
        raise CheckpointError(
            f"{place}: tensor {_several(missing)} missing; {folder / CONFIG} describes a {family.name} "
            f"model with {config.num_layers} layers that needs it: download the checkpoint again, or "
            "correct the configuration"
        )
    for name, shape in wanted.items():
        if source.shapes[name] != shape:
            raise CheckpointError(
                f"{source.files[name]}: tensor {name} has shape {list(source.shapes[name])}, but "
                f"{folder / CONFIG} asks for {list(shape)}; use weights and configuration of the same "
                "checkpoint"
            )
    extra = [name for name in source.shapes if name not in wanted and not family.ignores(name)]
    if config.tie_word_embeddings:
        extra = [name for name in extra if not _is_tied_head(name, source, family)]
    if extra:
        raise CheckpointError(
            f"{source.files[extra[0]]}: tensor {_several(extra)} not part of the {family.name} model with "
            f"{config.num_layers} layers that {folder / CONFIG} describes; use weights and configuration of "
            "the same checkpoint"
        )


def _is_tied_head(name: str, source: TensorFiles, family: Family) -> bool:
    """Whether `name` is the head of a model with tied embeddings; it must then equal the embedding."""
    (head,), (embed,) = family.parts("lm_head.weight"), family.parts("embed.weight")
    if name != head:
        return False
    if source.shapes[head] != source.shapes[embed] or not torch.equal(source.read(head), source.read(embed)):
        raise CheckpointError(
            f"{source.files[head]}: tensor {head} differs from {embed}, but {CONFIG} says "
            "tie_word_embeddings = true; set it to false if the head is its own"
        )
    return True


def _several(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more) are"
