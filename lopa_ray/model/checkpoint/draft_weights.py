"""The weights of a model's draft adapters, from the folder of a PEFT adapter, and of its draft head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.config_files import DRAFT_HEAD
from lopa_ray.model.checkpoint.lora import LoraAdapter
from lopa_ray.model.checkpoint.tensor_files import TensorFiles
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.families.family import published_rows
from lopa_ray.model.families.native import family_of
from lopa_ray.model.weights import Weights, meta_model


def with_draft_adapter(
    weights: Weights, config: NativeConfig, folder: Path, *, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """`weights` of the model `config`, and its draft adapters in `dtype`: per layer `down` [P, I], the A of all modules
    that it fuses, and `up` [O, P], their B as blocks of a diagonal. If the adapter has a trained vector for the mask
    token, this is the token's row of the embedding, and of an LM head that shares it: the mask is never chosen.
    Raises CheckpointError for an adapter that lacks a module of a layer, or has one of another rank."""
    family, model = family_of(config), meta_model(config, dtype)
    modules: dict[str, dict[str, int]] = {}  # own layer → published weight → its rows
    shapes: dict[str, tuple[int, ...]] = {}
    for own in (f"layers.{i}.{layer}" for i in range(config.num_layers) for layer, _ in config.draft_widths):
        rows, inputs = model.get_parameter(f"{own}.weight").shape
        modules[own] = published_rows(family, config, f"{own}.weight", rows)
        shapes |= {name: (count, inputs) for name, count in modules[own].items()}
    adapter = LoraAdapter.load(folder, shapes, token=config.mask_token_id)
    missing = [name for name in shapes if not adapter.changes(name)]
    if missing:
        raise CheckpointError(
            f"{folder}: got no update of {missing[0].removesuffix('.weight')}; a draft adapter has the same modules in "
            "every layer: use another one"
        )
    (embedding,) = family.published_names("embed.weight")
    vector = adapter.token_vector(embedding, config.hidden_size)
    for name, tensor in weights:
        if name == "embed.weight" and vector is not None:
            tensor[config.mask_token_id] = vector
        yield name, tensor
    widths = dict(config.draft_widths)
    for own, published in modules.items():
        width = widths[own.split(".", 2)[2]]
        down, up = _fused(adapter, published)
        if len(down) != width:
            raise CheckpointError(
                f"{folder}: got ranks of {len(down)} in all for {', '.join(published)}; a draft adapter has one rank, "
                f"here {width // len(published)}: use another one"
            )
        for half, value in (("down", down), ("up", up)):
            yield f"{own}.draft.{half}.weight", value.to(device=device, dtype=dtype)


def _fused(adapter: LoraAdapter, published: dict[str, int]) -> tuple[Tensor, Tensor]:
    """A [P, I] and B [O, P], in fp32, of the published weights of a layer."""
    modules = [name.removesuffix(".weight") for name in published]
    pairs = [adapter.pair(module) for module in modules]
    down = torch.cat([a for a, _ in pairs])
    up = torch.zeros(sum(len(b) for _, b in pairs), len(down))
    row = column = 0
    for module, (a, b) in zip(modules, pairs, strict=True):
        up[row : row + len(b), column : column + len(a)] = adapter.scales[module] * b
        row, column = row + len(b), column + len(a)
    return down, up


def with_draft_head(
    weights: Weights, config: NativeConfig, folder: Path, *, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    """`weights` of the model `config`, and its draft head in `dtype`, from the file beside the checkpoint's. Its scores
    have the LM head's rows of its tokens. Raises CheckpointError for a head that does not fit the model."""
    assert config.draft_head is not None
    file = folder / DRAFT_HEAD
    stored, model = TensorFiles.scan([file]), meta_model(config, dtype)
    head = {
        name.removeprefix(_PREFIX): tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if name.startswith(_PREFIX) and name != SCORES
    }
    tokens = (
        stored.read_tensor("tokens", (torch.int64, torch.int32)).long() if "tokens" in stored.files else None
    )
    fits = (
        stored.shapes == head
        and tokens is not None
        and tokens.min() >= 0
        and tokens.max() < config.vocab_size
    )
    if tokens is None or not fits:
        raise CheckpointError(
            f"{file}: got tensors {stored.shapes}; need {head}, and tokens below {config.vocab_size}: it is another "
            "model's draft head, so remove it"
        )
    yield f"{_PREFIX}tokens", tokens.to(device)
    for name, tensor in stored.read_tensors(name for name in head if name != "tokens"):
        yield f"{_PREFIX}{name}", tensor.to(device=device, dtype=dtype)
    lm_head = "embed.weight" if config.tie_word_embeddings else "lm_head.weight"
    for name, tensor in weights:
        if name == lm_head:
            yield SCORES, tensor[tokens.to(tensor.device)]
        yield name, tensor


_PREFIX = "draft_head."
SCORES = f"{_PREFIX}scores.weight"
