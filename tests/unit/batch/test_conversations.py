"""A conversation is the same prompt wherever it comes from: the server, both kinds of files, and the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import failed_line, parse_record
from cluster.openai.completions.chat import ChatRequest
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import PromptError
from support.fake_backend import CHAT, MODEL, Server, serving
from support.local_backend import LocalBackend
from support.tool_checkpoint import write_tool_checkpoint

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "what is "}, {"type": "text", "text": "1 + 2?"}],
        "name": None,
    },
    {"role": "assistant", "content": None, "reasoning": "let me add", "refusal": None, "tool_calls": [CALL]},
    {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "call_1"},
    {"role": "assistant", "content": "3", "tool_calls": None, "annotations": [], "audio": None},
    {"role": "user", "content": "and 3?", "refusal": "no"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "function_call": None},
    {"role": "tool", "tool_call_id": "call_1"},
    {"role": "assistant", "content": [], "refusal": "no"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "!"}]},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "yes", "refusal": "no"},
]
"""As OpenAI's clients send it. An answer or a result may have no text."""

MADE = {**CALL, "function": {"name": "add", "arguments": {"a": 1}}}

AS_TEMPLATES_GET_IT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is 1 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [MADE],
        "reasoning_content": "let me add",
    },
    {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "and 3?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [MADE],
    },
    {"role": "tool", "content": "", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "no"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "no!"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "yes"},
]


WRONG: list[tuple[list[Any], str]] = [
    ([], "messages"),
    (["hi"], "messages[0]"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}], "messages[0].content"),
    ([{"role": "assistant", "content": [{"type": "refusal"}]}], "messages[0].content[0].refusal"),
    ([{"role": "root", "content": "hi"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": "hi", "tool_calls": [CALL]}], "messages[0].tool_calls"),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = tmp_path_factory.mktemp("model")
    write_tool_checkpoint(folder)
    model = {"path": str(folder), "max_model_len": 1024}
    return LocalEngine.from_config(Config.load("demo", {"model": model, "decode": {"max_new_tokens": 8}}))


@pytest.fixture(scope="module")
def server(engine: LocalEngine) -> Iterator[Server]:
    with serving(LocalBackend(engine=engine)) as running:
        yield running


def row(engine: LocalEngine, record: dict[str, Any]) -> dict[str, Any]:
    (result,) = decode_lines(engine, [parse_record(1, record)], raw=False)
    return dict(result.row)


def batch_line(messages: list[Any]) -> dict[str, Any]:
    return {
        "custom_id": "mine",
        "method": "POST",
        "url": CHAT,
        "body": {"model": MODEL, "messages": messages},
    }


@pytest.mark.medium
def test_all_accept_it_and_decode_the_same(engine: LocalEngine, client: httpx.Client) -> None:
    expected = engine.encode(AS_TEMPLATES_GET_IT)
    assert engine.encode(CONVERSATION) == expected
    result = engine.generate(CONVERSATION)
    assert result.prompt_tokens == len(expected)
    assert parse_record(1, {"messages": CONVERSATION}).prompt == AS_TEMPLATES_GET_IT
    line = row(engine, {"messages": CONVERSATION})
    assert line["token_ids"] == result.token_ids and line["prompt_tokens"] == len(expected)
    answer = client.post(CHAT, json={"model": MODEL, "messages": CONVERSATION}).raise_for_status().json()
    (prompt,) = ChatRequest.parse({"model": MODEL, "messages": CONVERSATION}).prompts()
    assert list(prompt) == AS_TEMPLATES_GET_IT
    of_batch = row(engine, batch_line(CONVERSATION))["response"]["body"]
    assert of_batch["choices"][0]["message"] == answer["choices"][0]["message"]
    assert of_batch["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize(("messages", "field"), WRONG, ids=[field for _, field in WRONG])
def test_all_refuse_the_same_field(
    engine: LocalEngine, client: httpx.Client, messages: list[Any], field: str
) -> None:
    response = client.post(CHAT, json={"model": MODEL, "messages": messages})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert row(engine, batch_line(messages))["response"]["body"]["error"] == error
    assert parse_record(1, {"messages": messages}) == failed_line(1, error["message"])
    if messages and isinstance(messages[0], dict):  # else it is another prompt to an engine
        with pytest.raises(PromptError) as caught:
            engine.generate(messages)
        assert str(caught.value) == error["message"]


def test_arguments_may_be_an_object_or_text_that_is_none(engine: LocalEngine) -> None:
    """What templates get is read as the same once more."""
    for arguments in ({"a": 1}, '{"a": 1}', "not JSON"):
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        written = engine.tokenizer.decode(engine.encode(chat), skip_special_tokens=False)
        assert ('"a": 1' in written) == (arguments != "not JSON") and "add" in written
