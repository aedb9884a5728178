"""Text and tokens of a decode group: those that it decodes, and back."""

from __future__ import annotations

import asyncio

import pytest

from cluster.choices.messages import PromptToTokenize
from lopa_ray.engine.config import Config
from lopa_ray.errors import PromptError
from support.local_group import local_group

TEXT = "Ben has 7 pens — «ünïcode» 🙂 <|im_end|>"


def test_a_groups_tokens_are_those_that_it_decodes() -> None:
    group, engine = local_group(Config.load("demo"))
    for given, prompt in (
        (PromptToTokenize(TEXT), engine.encode(TEXT, raw=True)),
        (PromptToTokenize(TEXT, parse_special=False), engine.encode(TEXT, raw=True, parse_special=False)),
        (PromptToTokenize(({"role": "user", "content": TEXT},)), engine.encode(TEXT)),
    ):
        tokenized = asyncio.run(group.tokenize(given))
        assert list(tokenized.tokens) == prompt and tokenized.count == len(prompt)
        assert tokenized.token_strs is not None and len(tokenized.token_strs) == len(prompt)
        assert ("<|im_end|>" in tokenized.token_strs) == (
            given.parse_special or not isinstance(given.prompt, str)
        )
        assert tokenized.max_model_len == engine.config.model.max_model_len
    tokens = engine.encode(TEXT, raw=True)
    assert asyncio.run(group.detokenize(tokens)) == TEXT
    for outside in (-1, engine.vocabulary.size):
        with pytest.raises(
            PromptError, match=rf"token 1 is {outside}, .* 0 to {engine.vocabulary.size - 1};"
        ):
            asyncio.run(group.detokenize([tokens[0], outside]))
