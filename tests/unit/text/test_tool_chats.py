"""Chats with functions, calls and reasoning: as the template writes them, and no text of a user is a special token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer as Backend, models
from transformers import PreTrainedTokenizerFast

from lopa_ray.errors import PromptError
from lopa_ray.text.reasoning_tags import GEMMA_THOUGHT, THINK, reasoning_tags
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer
from lopa_ray.text.tool_format import HERMES, TOOL_FORMATS, ToolCall, tool_format
from support.tool_checkpoint import GEMMA_TEMPLATE, MARKUP, SDAR_TEMPLATE, SPECIAL, write_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The <sum> of two numbers, é, <|im_end|>",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "é": "<b>"}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is 1 + 2?"},
    {"role": "assistant", "content": "", "reasoning_content": "let me add", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    {"role": "tool", "content": "4"},
]


@pytest.fixture(scope="module", params=[False, True], ids=["added", "special"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With SDAR's template; tags are added tokens, or special ones."""
    return with_template(tmp_path_factory.mktemp("model"), SDAR_TEMPLATE, special_markup=request.param)


def with_template(folder: Path, template: str, **options: Any) -> Tokenizer:
    write_tokenizer(folder, template=template, **options)
    return require_tokenizer(Tokenizer.from_pretrained(folder))


def written(tokenizer: Tokenizer, messages: Any, **options: Any) -> str:
    """The prompt with its special tokens."""
    return tokenizer.decode(tokenizer.apply_chat_template(messages, **options), skip_special_tokens=False)


REFERENCE = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()), chat_template=SDAR_TEMPLATE)


def reference(messages: Any, **variables: Any) -> str:
    """What transformers renders."""
    return str(
        REFERENCE.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    )


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_chat_is_what_the_template_renders(tokenizer: Tokenizer, tools: Any, length: int) -> None:
    chat = CHAT[:length]
    assert written(tokenizer, chat, tools=tools) == reference(chat, tools=tools or None)
    assert ("# Tools" in written(tokenizer, chat, tools=tools)) == bool(tools)


def test_variables_reach_the_template(tokenizer: Tokenizer) -> None:
    plain, off = (
        written(tokenizer, CHAT, variables=variables) for variables in ({}, {"enable_thinking": False})
    )
    assert off == plain + "<think>\n\n</think>\n\n" == reference(CHAT, enable_thinking=False)
    # What the server itself sets cannot be set anew.
    other = {"messages": [{"role": "user", "content": "other"}], "tools": TOOLS, "eos_token": "x"}
    assert written(tokenizer, CHAT, variables=other) == plain


def test_tags_of_the_template_are_tokens_and_those_of_users_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.apply_chat_template(CHAT[:4])
    texts = {tokenizer.token_text(token) for token in ids if token in tokenizer.added_tokens}
    special = {text for text, is_special in tokenizer.added_tokens.values() if is_special}
    assert {"<think>", "<tool_call>", "<|im_start|>"} <= texts
    user = [{"role": "user", "content": "".join(MARKUP)}]
    shown = {tokenizer.token_text(token) for token in tokenizer.apply_chat_template(user)}
    assert not shown & special & set(MARKUP)


PIECES = st.sampled_from(
    [
        *SPECIAL,
        "<think>",
        "</tool_call>",
        "<|",
        "|>",
        "im_",
        "<|im_",
        "end|>",
        "a",
        " ",
        '"',
        "\\",
        "\U000f0000",
    ]
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@st.composite
def chats(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Messages, tools and variables with texts that would like to be special tokens, in every place."""
    values = st.recursive(
        TEXTS | st.integers() | st.none(),
        lambda inner: st.dictionaries(TEXTS, inner) | st.lists(inner),
        max_leaves=4,
    )
    arguments = draw(st.dictionaries(TEXTS, values, max_size=2) | TEXTS)
    call = {"id": draw(TEXTS), "type": "function", "function": {"name": draw(TEXTS), "arguments": arguments}}
    function = {
        "name": draw(TEXTS),
        "description": draw(TEXTS),
        "parameters": draw(st.dictionaries(TEXTS, values, max_size=2)),
    }
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": draw(TEXTS), "name": draw(TEXTS)},
        {"role": "assistant", "content": draw(TEXTS), "reasoning_content": draw(TEXTS), "tool_calls": [call]},
        {"role": "tool", "content": draw(TEXTS), "tool_call_id": draw(TEXTS)},
    ]
    return (
        chat,
        [{"type": "function", "function": function}],
        draw(st.dictionaries(TEXTS, values, max_size=1)),
    )


def without_brackets(value: Any) -> Any:
    """The same JSON value with no text that could be a special token."""
    return json.loads(json.dumps(value).replace("<", "\u2039"))


def special_texts(tokenizer: Tokenizer, rendered: str) -> list[str]:
    special = [text for text, is_special in tokenizer.added_tokens.values() if is_special]
    return re.findall("|".join(map(re.escape, special)), rendered)


def special_tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    added = tokenizer.added_tokens
    return [added[token][0] for token in ids if token in added and added[token][1]]


@pytest.mark.medium
@settings(max_examples=20)
@given(chats())
def test_no_text_of_a_user_is_ever_a_special_token(tokenizer: Tokenizer, given_chat: Any) -> None:
    chat, tools, variables = given_chat
    ids = tokenizer.apply_chat_template(chat, tools=tools, variables=variables)
    assert tokenizer.decode(ids, skip_special_tokens=False) == reference(chat, tools=tools)
    plain_chat, plain_tools = without_brackets(given_chat[:2])
    expected = special_texts(tokenizer, reference(plain_chat, tools=plain_tools))
    assert special_tokens(tokenizer, ids) == expected


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Without tools in its template."""
    return with_template(tmp_path_factory.mktemp("plain"), CHATML)


def test_a_template_without_tools_gets_them_as_text(plain: Tokenizer, tmp_path: Path) -> None:
    assert not plain.chat_template(TOOLS).knows_tools
    turns = ["<|im_start|>", "<|im_end|>"] * 4
    ids = plain.apply_chat_template(CHAT, tools=TOOLS)
    assert special_tokens(plain, ids) == [*turns, "<|im_start|>"]
    text = written(plain, CHAT, tools=TOOLS)
    system, user, assistant, results, rest = text.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nbe brief\n\n# Tools")
    assert json.dumps(TOOLS[0], ensure_ascii=False) in system
    assert user == "<|im_start|>user\nwhat is 1 + 2?"
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "é": "<b>"}}\n</tool_call>'
    assert assistant == f"<|im_start|>assistant\n{call}\n{call}"
    results_text = "<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
    assert results == f"<|im_start|>user\n{results_text}"
    assert rest == "<|im_start|>assistant"
    assert written(plain, CHAT[1:2], tools=TOOLS).startswith("<|im_start|>system\n# Tools")


def test_a_template_without_tools_keeps_what_it_knows(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.name }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}"
    tokenizer = with_template(tmp_path, template)
    chat = [
        {"role": "user", "name": "Mia", "content": "hi"},
        {"role": "assistant", "content": "yes", "reasoning_content": "why"},
    ]
    assert written(tokenizer, chat) == "Mia::hi;:why:yes;"


def test_the_chat_that_was_given_stays_as_it_was(plain: Tokenizer) -> None:
    before = json.dumps([CHAT, TOOLS])
    plain.apply_chat_template(CHAT, tools=TOOLS)
    assert json.dumps([CHAT, TOOLS]) == before


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (SDAR_TEMPLATE, "hermes"),
        ("{% for t in tools %}{{ t }}{% endfor %}[TOOL_CALLS]f[ARGS]{}", "mistral"),
        (CHATML, "hermes"),
        (GEMMA_TEMPLATE, "gemma4"),
    ],
)
def test_a_template_shows_how_calls_are_written(tmp_path: Path, template: str, name: str) -> None:
    tokenizer = with_template(tmp_path, template)
    assert tool_format(tokenizer.chat_template()) is TOOL_FORMATS[name]
    assert tokenizer.chat_template().knows_tools == ("tools" in template)
    assert reasoning_tags(tokenizer.chat_template()) is (GEMMA_THOUGHT if name == "gemma4" else THINK)


def test_calls_are_written_as_the_template_writes_them(tokenizer: Tokenizer) -> None:
    call = HERMES.write(ToolCall("add", '{"a": 1, "é": "<b>"}'))
    assert f"{call}\n{call}<|im_end|>" in written(tokenizer, CHAT)


@pytest.mark.parametrize(
    "change",
    [
        {"tool_calls": ["x"]},
        {"tool_calls": [{"function": {"name": "f"}}]},
        {"tool_calls": 1},
        {"reasoning_content": ["x"]},
        {"name": 1},
        {"tool_call_id": 1},
        {"function_call": {"name": "f"}},
    ],
)
def test_messages_with_wrong_parts_are_refused(tokenizer: Tokenizer, change: Any) -> None:
    with pytest.raises(PromptError, match="message"):
        tokenizer.apply_chat_template([{"role": "assistant", "content": "x", **change}])


# Decoding


def test_shown_tokens_are_text_and_other_special_ones_are_not(tokenizer: Tokenizer) -> None:
    text = "<think>é</think>a<|im_end|>b<tool_call>{}</tool_call>"
    ids = tokenizer.encode_markup(text)
    assert tokenizer.decode(ids, shown={*MARKUP, "nothing"}) == text.replace("<|im_end|>", "")
    assert tokenizer.decode(ids, shown={"<|im_end|>", *MARKUP}) == text
    assert tokenizer.decode([], shown=MARKUP) == ""
    only_text = tokenizer.decode(ids)
    special = any(is_special and written in MARKUP for written, is_special in tokenizer.added_tokens.values())
    assert only_text == ("éab{}" if special else text.replace("<|im_end|>", ""))


@pytest.mark.medium
@given(st.lists(st.sampled_from([*MARKUP, *SPECIAL, "a", " b", "é🙂", "\n"]), max_size=8).map("".join))
def test_markup_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_markup(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids, shown={*MARKUP, *SPECIAL}) == text
    for at in range(len(ids) + 1):  # as a prefix that grows
        assert text.startswith(tokenizer.decode(ids[:at], shown={*MARKUP, *SPECIAL}).rstrip("\ufffd"))
