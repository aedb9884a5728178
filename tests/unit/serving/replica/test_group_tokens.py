"""Text and tokens of a decode group: those that it decodes, and back."""

from __future__ import annotations

import asyncio

import pytest

from cluster.choices.messages import PromptToTokenize
from cluster.serving.replica.group_server import GroupServer
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import PromptError


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_pretrained("demo")


@pytest.fixture(scope="module")
def group(engine: LocalEngine) -> GroupServer:
    """Over an engine in this process: text and tokens need nothing of the others."""
    server = GroupServer("demo", {"model": {"path": "demo"}})
    server._engine = engine
    return server


TEXT = "Ben has 7 pens — «ünïcode» 🙂 <|im_end|>"


def test_a_groups_tokens_are_those_that_it_decodes(engine: LocalEngine, group: GroupServer) -> None:
    text = asyncio.run(group.tokenize(PromptToTokenize(TEXT)))
    assert list(text.tokens) == engine.encode(TEXT, raw=True)
    assert text.token_strs is not None and text.token_strs[-1] == "<|im_end|>"
    characters = asyncio.run(group.tokenize(PromptToTokenize(TEXT, parse_special=False)))
    assert list(characters.tokens) == engine.encode(TEXT, raw=True, parse_special=False)
    assert text.max_model_len == engine.config.model.max_model_len
    chat = asyncio.run(group.tokenize(PromptToTokenize(({"role": "user", "content": TEXT},))))
    assert list(chat.tokens) == engine.encode(TEXT) and len(chat.tokens) > len(text.tokens)
    assert chat.token_strs is not None and "<|im_start|>" in chat.token_strs
    assert len(chat.token_strs) == len(chat.tokens) == chat.count


def test_tokens_of_a_group_and_back(engine: LocalEngine, group: GroupServer) -> None:
    tokens = engine.encode(TEXT, raw=True)
    assert asyncio.run(group.detokenize(tokens)) == TEXT
    mask = engine.vocabulary.mask_token_id
    assert asyncio.run(group.detokenize([*tokens, mask])) == TEXT + engine.tokenizer.token_text(mask)
    for outside in (-1, engine.vocabulary.size):
        with pytest.raises(
            PromptError, match=rf"token 1 is {outside}, .* 0 to {engine.vocabulary.size - 1};"
        ):
            asyncio.run(group.detokenize([tokens[0], outside]))
