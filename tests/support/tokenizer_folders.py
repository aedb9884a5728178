"""Folders with the tokenizer files of a checkpoint, in the layouts that are published, with few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, pre_tokenizers, trainers

from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
THINK = "<think>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_qwen2(folder: Path, **settings: Any) -> int:
    """vocab.json, merges.txt and settings as Dream and Qwen2 publish them; returns the first added id.

    A setting that is None is left out.
    """
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["user assistant system hello world the mask start end"] * 9, trainer)
    trained.model.save(str(folder))
    first = trained.get_vocab_size()
    added = {
        str(first + i): {"content": text, "special": text != THINK, "normalized": False}
        for i, text in enumerate([*SPECIAL, THINK])
    }
    content = {
        "added_tokens_decoder": added,
        "chat_template": CHATML,
        "eos_token": SPECIAL[0],
        "mask_token": SPECIAL[3],
        "tokenizer_class": "Qwen2Tokenizer",
        **settings,
    }
    present = {name: value for name, value in content.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(present))
    return first


def write_whole(folder: Path, **settings: Any) -> int:
    """tokenizer.json with the same words, made by the tokenizers library itself."""
    first = write_qwen2(folder, **settings)
    backend = Backend(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(THINK, normalized=False)])
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()
    return first


def opened(folder: Path) -> Tokenizer:
    return require_tokenizer(Tokenizer.from_pretrained(folder))


def with_template(folder: Path, template: str) -> Tokenizer:
    write_qwen2(folder, chat_template=template)
    return opened(folder)


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)
