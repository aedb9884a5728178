"""Begin a training with the weights of a model that has another vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_tokenizer import SPECIAL_TOKENS, TOKENIZER_FILES
from lopa_ray.model.checkpoint import read_weights
from lopa_ray.model.transformer import Transformer


def start_from(model: Transformer, tokenizer: Tokenizer, folder: Path) -> None:
    """Give a model the weights of the checkpoint `folder`, which has the same shape but for its vocabulary.

    A token's row of the embedding and of the head becomes the mean of the rows of what it is in the other vocabulary.
    """
    theirs = Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    pieces = [pieces_of(token, tokenizer, theirs) for token in range(tokenizer.get_vocab_size())]
    weights = dict(read_weights(folder, dtype=torch.float32))
    for name in ("embed.weight", "lm_head.weight"):
        weights[name] = torch.stack([weights[name][ids].mean(0) for ids in pieces])
    model.load_state_dict(weights)


def pieces_of(token: int, tokenizer: Tokenizer, theirs: Tokenizer) -> Tensor:
    """The ids [n] that a token is in another vocabulary."""
    spelling = tokenizer.id_to_token(token)
    assert spelling is not None
    known = theirs.token_to_id(spelling)
    if known is not None:
        return torch.tensor([known])
    assert spelling not in SPECIAL_TOKENS
    return torch.tensor(theirs.encode(tokenizer.decode([token])).ids)
