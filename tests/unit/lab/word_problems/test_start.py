"""A training that begins with the weights of a model with another vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo_start import pieces_of, start_from
from demo_tokenizer import SPECIAL_TOKENS, train_tokenizer
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.model.checkpoint import read_weights
from lopa_ray.model.transformer import Transformer
from train_demo_model import TrainConfig, build_model


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
    model: Transformer = build_model(TrainConfig(str(tmp_path)), ours.get_vocab_size())
    start_from(model, ours, DEMO_MODEL)
    shipped = dict(read_weights(DEMO_MODEL, dtype=torch.float32))
    for name, weight in model.state_dict().items():
        if name in ("embed.weight", "lm_head.weight"):
            for token in (0, 50, ours.get_vocab_size() - 1):
                expected = shipped[name][pieces_of(token, ours, theirs)].mean(0)
                torch.testing.assert_close(weight[token], expected)
        else:
            assert torch.equal(weight, shipped[name]), name
