"""Begin a training with the weights of a model that has another vocabulary, or fewer layers."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_tokenizer import SPECIAL_TOKENS, TOKENIZER_FILES
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import read_weights
from lopa_ray.model.transformer import Transformer

OUTPUTS = ("o.weight", "mlp.down.weight")
"""Weights through which a layer adds to its rows: a layer in which they are zero changes nothing."""


def start_from(model: Transformer, tokenizer: Tokenizer, folder: Path) -> None:
    """Give a model the weights of the checkpoint `folder`, of the same shape but for vocabulary and number of layers.

    A token's row of the embedding and of the head becomes the mean of the rows of what it is in the other vocabulary.
    Layers that the checkpoint lacks are spread among its own; each is a copy of the layer before it that adds nothing.
    """
    theirs = Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    pieces = [pieces_of(token, tokenizer, theirs) for token in range(tokenizer.get_vocab_size())]
    weights = dict(read_weights(folder, load_config(folder), dtype=torch.float32))
    for name in ("embed.weight", "lm_head.weight"):
        weights[name] = torch.stack([weights[name][ids].mean(0) for ids in pieces])
    of_layers = {name: weights.pop(name) for name in tuple(weights) if name.startswith("layers.")}
    layers = 1 + max(int(name.split(".")[1]) for name in of_layers)
    for index, (source, is_copy) in enumerate(sources_of(model.config.num_layers, layers)):
        for name, weight in of_layers.items():
            _, layer, rest = name.split(".", 2)
            if int(layer) == source:
                weights[f"layers.{index}.{rest}"] = weight * 0 if is_copy and rest in OUTPUTS else weight
    model.load_state_dict(weights)


def sources_of(ours: int, theirs: int) -> list[tuple[int, bool]]:
    """The layer of theirs that each of our layers comes from, and whether an earlier layer comes from it too."""
    sources = [index * theirs // ours for index in range(ours)]
    return [(source, source in sources[:index]) for index, source in enumerate(sources)]


def pieces_of(token: int, tokenizer: Tokenizer, theirs: Tokenizer) -> Tensor:
    """The ids [n] that a token is in another vocabulary."""
    spelling = tokenizer.id_to_token(token)
    assert spelling is not None
    known = theirs.token_to_id(spelling)
    if known is not None:
        return torch.tensor([known])
    assert spelling not in SPECIAL_TOKENS
    return torch.tensor(theirs.encode(tokenizer.decode([token])).ids)
