"""Prompts that go in without a chat template: when special tokens are recognised in their text."""

from __future__ import annotations

import pytest

from lopa_ray.engine.local import LocalEngine
from lopa_ray.engine.session_factory import Prompt
from lopa_ray.errors import PromptError
from lopa_ray.text.tokenizer import require_tokenizer

QUESTION = "Tom has 6 bags of 7 cards."
MARKUP = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def test_markup_in_raw_text_is_that_of_the_template(engine: LocalEngine) -> None:
    chat: list[Prompt] = [[{"role": "user", "content": QUESTION}]]
    settings = engine.config.decode.replace(max_new_tokens=16)
    assert engine.encode(MARKUP, raw=True) == engine.encode(chat[0])
    (of_chat,) = engine.generate(chat, settings)
    assert engine.generate(MARKUP, settings, raw=True).token_ids == of_chat.token_ids


def test_it_is_characters_where_that_is_asked_for(engine: LocalEngine) -> None:
    characters = require_tokenizer(engine.tokenizer).encode(MARKUP)
    assert engine.encode(MARKUP, raw=True, parse_special=False) == characters
    assert engine.create_session(MARKUP, raw=True, parse_special=False).prompt == characters


def test_a_mask_token_in_raw_text_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(PromptError, match=r"got text with the mask token <\|mask\|>.*parse_special"):
        engine.create_session("a <|mask|> b", raw=True)
    assert engine.create_session("a <|mask|> b", raw=True, parse_special=False).prompt
