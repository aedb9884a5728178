"""The tokenizer of a GGUF file as the files that Hugging Face publishes.

transformers has a converter as well, which reads the file a second time and does not know that SmolLM2 splits digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lopa_ray.errors import CheckpointError

_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


def save_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Write a byte-level BPE that splits digits, and its chat template, to `folder`. `fields`: the GGUF's. Raises
    CheckpointError for a tokenizer of another kind."""
    ggml = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    kind = (ggml["model"], ggml["pre"])
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(
            f"got a tokenizer {kind}; only ('gpt2', 'smollm') is converted: use another model"
        )
    tokens = ggml["tokens"]
    merges = [tuple(merge.split(" ")) for merge in ggml["merges"]]
    backend = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    of_control = [
        token for token, kind in zip(tokens, ggml["token_type"], strict=True) if kind == TokenType.CONTROL
    ]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in of_control])
    backend.save(str(folder / "tokenizer.json"))
    roles = {role: tokens[ggml[name]] for role, name in _ROLES.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
