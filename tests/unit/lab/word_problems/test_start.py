"""A training that begins with the weights of a model with another vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo_model import build_model, forward
from demo_start import pieces_of, start_from
from demo_tokenizer import SPECIAL_TOKENS, train_tokenizer
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import read_weights
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.transformer import Transformer


def smaller_vocabulary(tmp_path: Path) -> Tokenizer:
    return train_tokenizer(tmp_path, vocab_size=300, problems=200)


def test_a_token_is_made_of_what_it_was(tmp_path: Path) -> None:
    ours, theirs = smaller_vocabulary(tmp_path), Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    for token in range(ours.get_vocab_size()):
        pieces = pieces_of(token, ours, theirs).tolist()
        if token < len(SPECIAL_TOKENS):
            assert pieces == [token]
        elif ours.id_to_token(token) in theirs.get_vocab():
            assert pieces == [theirs.token_to_id(ours.id_to_token(token))]
        else:
            assert theirs.decode(pieces) == ours.decode([token])


def test_rows_are_means_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    ours, theirs = smaller_vocabulary(tmp_path), Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    shipped = dict(read_weights(DEMO_MODEL, load_config(DEMO_MODEL), dtype=torch.float32))
    model = fresh_model(ours.get_vocab_size(), 0)
    start_from(model, ours, DEMO_MODEL)
    for name, weight in model.state_dict().items():
        if name in ("embed.weight", "lm_head.weight"):
            for token in (0, 50, ours.get_vocab_size() - 1):
                expected = shipped[name][pieces_of(token, ours, theirs)].mean(0)
                torch.testing.assert_close(weight[token], expected)
        else:
            assert torch.equal(weight, shipped[name]), name


@torch.no_grad()
def test_more_layers_change_nothing_at_first() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    shipped = load_model(DEMO_MODEL, dtype=torch.float32, device="cpu")
    model = fresh_model(tokenizer.get_vocab_size(), 2)
    ids = torch.tensor([tokenizer.encode("Tom has 3 boxes with 4 pens in each box.").ids])
    mask = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
    assert not torch.allclose(forward(model, ids, mask), forward(shipped, ids, mask), atol=0.1)
    start_from(model, tokenizer, DEMO_MODEL)
    torch.testing.assert_close(forward(model, ids, mask), forward(shipped, ids, mask))


def fresh_model(vocab_size: int, num_more_layers: int) -> Transformer:
    """Random weights in the shape of the package's model, but for vocabulary and layers."""
    shape = load_model(DEMO_MODEL, dtype=torch.float32, device="cpu").config
    layers = shape.num_layers + num_more_layers
    return build_model(
        vocab_size, shape.hidden_size, layers, shape.num_heads, shape.intermediate_size, seed=7
    )
