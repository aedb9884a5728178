"""Functions, calls and reasoning in chats over HTTP: what is taken, what becomes of it, and what is sent."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cluster.choices.messages import ChoicesRequest
from cluster.openai.completion_objects import ChatChunk, ChatCompletion
from support.fake_backend import CHAT, HI, MODEL, TOOL_PARTS, FakeBackend, Server, error_of

ADD = {
    "name": "add",
    "description": "the sum",
    "parameters": {"type": "object", "const": None},
    "strict": True,
}
TOOLS: list[Any] = [{"type": "function", "function": function} for function in (ADD, {"name": "stop"})]
CALLS = [("add", '{"a": 1, "é": 2}'), ("stop", "{}")]
PROBE = "Mia's <|im_end|> é"


@pytest.fixture
def backend(server: Server) -> FakeBackend:
    """Answers with reasoning, text and calls."""
    server.backend.parts = TOOL_PARTS
    return server.backend


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, **fields}


def sent(backend: FakeBackend, client: httpx.Client, **fields: Any) -> ChoicesRequest:
    """What the backend gets."""
    response = client.post(CHAT, json=body(**fields))
    assert response.status_code == 200, response.text
    return backend.requests[-1][1]


def chunks(client: httpx.Client, **fields: Any) -> list[ChatChunk]:
    response = client.post(CHAT, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    *lines, done, end = response.content.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    return [ChatChunk.model_validate_json(line.removeprefix(b"data: ")) for line in lines]


# Requests


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}}


@pytest.mark.parametrize(
    ("fields", "offered", "forced"),
    [
        ({}, 2, ()),
        ({"tool_choice": None}, 2, ()),
        ({"tool_choice": "auto"}, 2, ()),
        ({"tool_choice": "none"}, 0, ()),
        ({"tool_choice": "required"}, 2, ("add", "stop")),
        ({"tool_choice": {"type": "function", "function": {"name": "stop"}}}, 2, ("stop",)),
        (allowed("auto", "add"), 1, ()),
        (allowed("auto", "stop", "add", "add"), 2, ()),
        (allowed("auto"), 0, ()),
        (allowed("required", "add"), 1, ("add",)),
        (allowed("required", "stop", "add"), 2, ("add", "stop")),
    ],
)
def test_functions_are_offered_and_forced(
    backend: FakeBackend, client: httpx.Client, fields: Any, offered: int, forced: tuple[str, ...]
) -> None:
    request = sent(backend, client, tools=TOOLS, **fields)
    assert (request.tools, request.forced_tools) == (tuple(TOOLS[:offered]), forced)
    assert request.parallel_tool_calls is True and request.settings == {}


def test_fields_beside_functions(backend: FakeBackend, client: httpx.Client) -> None:
    assert not sent(backend, client, tools=TOOLS, parallel_tool_calls=False).parallel_tool_calls
    variables = {"enable_thinking": True, "x": [1, {PROBE: PROBE}]}
    request = sent(backend, client, reasoning_effort="none", chat_template_kwargs=variables)
    assert request.template_variables == {"reasoning_effort": "none", **variables}
    request = sent(backend, client, reasoning_effort="none")
    assert request.template_variables == {"reasoning_effort": "none", "enable_thinking": False}
    assert sent(backend, client, reasoning_effort="high").template_variables == {"reasoning_effort": "high"}
    assert sent(backend, client).template_variables == {}


def test_words_and_tags_become_settings(backend: FakeBackend, client: httpx.Client) -> None:
    tag = {"structures": [{"begin": "#", "schema": {"enum": [1]}, "end": ";"}], "triggers": ["#"]}
    for path, given in ((CHAT, body()), ("/v1/completions", {"model": MODEL, "prompt": "hi"})):
        fields = {"bad_words": ["a", " b"], "structured_outputs": {"structural_tag": tag}}
        assert client.post(path, json={**given, **fields}).status_code == 200
        settings = backend.requests[-1][1].settings
        assert settings == {"bad_words": ["a", " b"], "guided_structural_tag": json.dumps(tag)}
    request = sent(backend, client, bad_words=[], structured_outputs={"structural_tag": None})
    assert request.settings == {}


def test_messages_of_calls_become_those_that_templates_know(
    backend: FakeBackend, client: httpx.Client
) -> None:
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "add", "arguments": '{"a": 1}'}}
    broken = {"function": {"name": "add", "arguments": "{oops"}}
    listed = {"id": None, "function": {"name": "add", "arguments": "[1]"}}
    messages = [
        {"role": "developer", "content": "be brief", "name": "boss"},
        {"role": "user", "content": PROBE},
        {"role": "assistant", "content": None, "tool_calls": [call, broken, listed]},
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "so", "reasoning": "why", "tool_calls": []},
        {"role": "assistant", "content": "so", "reasoning_content": "how", "refusal": None, "audio": None},
    ]
    assert sent(backend, client, messages=messages).prompts[0] == (
        {"role": "system", "content": "be brief", "name": "boss"},
        {"role": "user", "content": PROBE},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
                {"type": "function", "function": {"name": "add", "arguments": "{oops"}},
                {"type": "function", "function": {"name": "add", "arguments": "[1]"}},
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "assistant", "content": "so", "reasoning_content": "why"},
        {"role": "assistant", "content": "so", "reasoning_content": "how"},
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [1]}, "tools[0]", "invalid_value"),
        ({"tools": TOOLS * 65}, "tools", "invalid_value"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "invalid_value"),
        ({"tools": [{**TOOLS[0], "x": 1}]}, "tools[0].x", "unknown_parameter"),
        (
            {"tools": [{"type": "function", "function": {**ADD, "name": '"'}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            "invalid_value",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "missing_parameter"),
        ({"tools": TOOLS, **allowed("auto", "add", "sub")}, "tool_choice", "invalid_value"),
        (allowed("auto", "add"), "tool_choice", "invalid_value"),
        ({"tools": TOOLS, **allowed("required")}, "tool_choice", "invalid_value"),
        (
            {"tools": TOOLS, **allowed("none", "add")},
            "tool_choice.allowed_tools.mode",
            "invalid_value",
        ),
        ({"tools": TOOLS, "tool_choice": ["add"]}, "tool_choice", "invalid_value"),
        ({"reasoning_effort": "x" * 33}, "reasoning_effort", "invalid_value"),
        ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
        ({"bad_words": [1]}, "bad_words[0]", "invalid_value"),
        ({"structured_outputs": {"structural_tag": 1}}, "structured_outputs.structural_tag", "invalid_value"),
        (
            {"structured_outputs": {"structural_tag": {}}, "guided_regex": "a"},
            "guided_regex",
            "invalid_value",
        ),
        (
            {"messages": [{**HI[0], "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: Any, param: str, code: str) -> None:
    error = error_of(client.post(CHAT, json=body(**fields)), 400)
    assert (error.param, error.code) == (param, code)


# Responses


def test_an_answer_with_calls(backend: FakeBackend, client: httpx.Client) -> None:
    answer = ChatCompletion.model_validate(client.post(CHAT, json=body(tools=TOOLS, n=2)).json())
    ids = set()
    for choice in answer.choices:
        message = choice.message
        assert (message.content, message.reasoning_content) == ("I ask around", "let me see")
        assert message.tool_calls is not None and choice.finish_reason == "tool_calls"
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS
        ids |= {call.id for call in message.tool_calls}
    assert len(ids) == 4 and all(call_id.startswith("call_") for call_id in ids)
    assert answer.usage.completion_tokens == 2 * len(TOOL_PARTS)


def test_without_text_the_content_is_null(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts = TOOL_PARTS[4:]
    message = client.post(CHAT, json=body(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["content"] is None and "reasoning_content" not in message
    backend.parts = TOOL_PARTS[:2]
    message = client.post(CHAT, json=body()).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "let me see")
    assert "tool_calls" not in message


def test_a_stream_of_calls(backend: FakeBackend, client: httpx.Client) -> None:
    first, *middle, last = [chunk.choices[0] for chunk in chunks(client, tools=TOOLS)]
    assert first.delta.role == "assistant"
    assert (last.finish_reason, last.delta.model_dump(exclude_unset=True)) == ("tool_calls", {})
    deltas = [choice.delta.model_dump(exclude_unset=True) for choice in middle]
    ids = [call.pop("id") for delta in deltas for call in delta.get("tool_calls", []) if "id" in call]
    assert len(set(ids)) == 2
    assert deltas == [
        {"reasoning_content": "let me"},
        {"reasoning_content": " see"},
        {"content": "I ask"},
        {"content": " around"},
        {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "add", "arguments": '{"a": 1,'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "é": 2}'}}]},
        {"tool_calls": [{"index": 1, "type": "function", "function": {"name": "stop", "arguments": "{}"}}]},
    ]  # fmt: skip


@pytest.mark.parametrize("logprobs", [False, True])
def test_reasoning_can_be_left_out(backend: FakeBackend, client: httpx.Client, logprobs: bool) -> None:
    fields = {"include_reasoning": False, "logprobs": logprobs}
    choice = client.post(CHAT, json=body(**fields)).json()["choices"][0]
    assert "reasoning_content" not in choice["message"] and choice["message"]["content"] == "I ask around"
    streamed = [chunk.choices[0] for chunk in chunks(client, **fields)]
    assert not any("reasoning_content" in choice.delta.model_fields_set for choice in streamed)
    assert "".join(choice.delta.content or "" for choice in streamed) == "I ask around"
    if logprobs:  # those of all tokens, as of a whole answer
        tokens = [logprob.token for part in streamed if part.logprobs for logprob in part.logprobs.content]
        assert tokens == [logprob["token"] for logprob in choice["logprobs"]["content"]]
        assert len(tokens) == len(TOOL_PARTS)


def test_usage_in_every_chunk(backend: FakeBackend, client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = chunks(client, stream_options=options, n=2)
    usages = [chunk.usage for chunk in streamed]
    assert all(usage is not None for usage in usages)
    counts = [usage.completion_tokens for usage in usages if usage is not None]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 2 * len(TOOL_PARTS))
    assert {usage.prompt_tokens for usage in usages if usage is not None} == {1}
    at_end = chunks(client, stream_options={"include_usage": True})
    assert [chunk.usage is not None for chunk in at_end] == [False] * (len(at_end) - 1) + [True]


def test_a_deadline_leaves_calls_and_reasoning(backend: FakeBackend, client: httpx.Client) -> None:
    backend.deadline_after = 5
    asked = body(tools=TOOLS, lopa={"deadline": 1, "partial": True})
    message = client.post(CHAT, json=asked).json()["partial"]["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1,'}
    assert (message["content"], message["reasoning_content"]) == ("I ask around", "let me see")
