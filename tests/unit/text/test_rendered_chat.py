"""A chat is rendered to transformers' text, and that text is encoded to transformers' ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from support.tokenizer_folders import opened, user, write_qwen2, write_whole
from support.tool_checkpoint import THINKING_TEMPLATE, write_tokenizer

BOS = "<|endoftext|>"


def write_bos(folder: Path) -> None:
    """A tokenizer that begins every text with BOS, and a template that writes BOS as well."""
    first = write_whole(folder, chat_template="{{ '" + BOS + "' + messages[0]['content'] }}")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, first)])
    backend.save(str(folder / "tokenizer.json"))


def write_thinking(folder: Path, special_markup: bool) -> None:
    write_tokenizer(folder, template=THINKING_TEMPLATE, special_markup=special_markup)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "qwen2": write_qwen2,
    "whole": write_whole,
    "bos": write_bos,
    "thinking": lambda folder: write_thinking(folder, False),
    "special tags": lambda folder: write_thinking(folder, True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_text_and_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    tokenizer, reference = opened(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    # A special token in a text is none of this project, and one of transformers.
    world = "world" if name == "special tags" else "wo<think>rld"
    chat = [*user(" hello\n"), {"role": "assistant", "content": world}, *user("it's 12 \u00e9 ")]
    options = {"add_generation_prompt": True}
    rendered = tokenizer.render_chat(chat)
    assert rendered.text == reference.apply_chat_template(chat, tokenize=False, **options)
    ids = tokenizer.encode_chat(rendered)
    assert ids == reference.apply_chat_template(chat, **options)["input_ids"]
    assert ids == tokenizer.apply_chat_template(chat)
    assert tokenizer.decode(ids, skip_special_tokens=False) == rendered.text
