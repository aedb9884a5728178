"""Requests to the Responses API: what is taken, what becomes of it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cluster.choices.messages import ChoicesRequest
from support.fake_backend import RESPONSES, FakeBackend, error_of
from support.responses_api import ADD, TOOLS, body, call, whole

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # Pydantic's, about what does not fit its model

OFFERED = tuple(
    {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
    for tool in TOOLS
)


def sent(backend: FakeBackend, client: httpx.Client, **fields: Any) -> ChoicesRequest:
    """What the backend gets."""
    response = client.post(RESPONSES, json=body(**fields))
    assert response.status_code == 200, response.text
    return backend.requests[-1][1]


def test_a_response_becomes_a_job(backend: FakeBackend, client: httpx.Client) -> None:
    fields = {
        "instructions": "be brief",
        "input": "hi",
        "max_output_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 4,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "reasoning": {"effort": "none", "summary": "auto"},
        "chat_template_kwargs": {"x": 1},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 1,
        "store": False,
        "background": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "safety_identifier": "me",
        "user": "me",
        "lopa": {"num_branches": 2, "deadline": 9, "partial": True},
    }
    request = sent(backend, client, **fields)
    assert request == ChoicesRequest(
        id=request.id,
        client="address 127.0.0.1",
        prompts=(({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}),),
        settings={
            "max_new_tokens": 16,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 4,
            "top_logprobs": 1,
            "num_branches": 2,
        },
        tools=OFFERED,
        forced_tools=("add",),
        parallel_tool_calls=False,
        template_variables={"reasoning_effort": "none", "enable_thinking": False, "x": 1},
        logprobs=True,
        deadline_s=9.0,
        partial=True,
    )


NEUTRAL: dict[str, Any] = {
    "tools": [],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {},
    "include": [],
    "store": False,
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "stream_options": None,
    "truncation": "disabled",
    "context_management": [],
    "background": False,
}


def test_what_asks_for_nothing_is_taken(backend: FakeBackend, client: httpx.Client) -> None:
    plain = ChoicesRequest("", (({"role": "user", "content": "hi"},),), {})
    for fields in ({}, NEUTRAL, dict.fromkeys(NEUTRAL)):
        request = sent(backend, client, **fields)
        assert request == ChoicesRequest(request.id, plain.prompts, {}, client="address 127.0.0.1")


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        (
            {
                "type": "json_schema",
                "name": "a",
                "strict": True,
                "schema": {"enum": ["é", None], "const": None},
            },
            {"enum": ["é", None], "const": None},
        ),
    ],
)
def test_the_form_of_the_text(backend: FakeBackend, client: httpx.Client, form: Any, schema: Any) -> None:
    request = sent(backend, client, text={"format": form})
    assert json.loads(request.settings["guided_json"]) == schema
    assert whole(client, text={"format": form})["text"] == {"format": form}


ITEMS: list[Any] = [
    {"role": "developer", "content": "be brief"},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "1 +"}, {"type": "input_text", "text": " 2"}],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "why"}],
        "encrypted_content": None,
    },
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "see", "annotations": [], "logprobs": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "add",
        "arguments": '{"a": 1}',
        "status": "completed",
    },
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "oops"},
    {"type": "function_call_output", "call_id": "c1", "output": "3"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
    {"type": "message", "role": "assistant", "content": "three"},
    {"role": "assistant", "content": "or four"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
    {"type": "function_call", "call_id": "c3", "name": "stop", "arguments": "{}"},
]


def test_items_become_messages(backend: FakeBackend, client: httpx.Client) -> None:
    assert sent(backend, client, input=ITEMS).prompts[0] == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1 + 2"},
        {
            "role": "assistant",
            "content": "see",
            "reasoning_content": "why",
            "tool_calls": [call("c1", "add", {"a": 1}), call("c2", "add", "oops")],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": "4", "tool_call_id": "c2"},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": "or four"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "short",
            "tool_calls": [call("c3", "stop", {})],
        },
    )


@pytest.mark.parametrize("absent", [{}, {"content": None}, {"content": []}, {"content": ""}])
def test_answers_and_results_may_have_no_text(
    backend: FakeBackend, client: httpx.Client, absent: dict[str, Any]
) -> None:
    refusal = [{"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "!"}]
    output = {"output": absent["content"]} if absent else {}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", **absent},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": refusal},
        {"type": "function_call", "call_id": "c1", "name": "stop", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", **output},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "refusal": "never", **absent},
    ]
    assert sent(backend, client, input=items).prompts[0] == (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "no!", "tool_calls": [call("c1", "stop", {})]},
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "never"},
    )


OTHER_TOOLS: list[Any] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
    {"type": "file_search", "vector_store_ids": ["a"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview", "display_width": 1},
    {"type": "image_generation"},
    {"type": "mcp", "server_label": "a"},
    {"type": "local_shell"},
    {"type": "web_search", "filters": {}},
]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_no_functions_are_left_out(
    backend: FakeBackend, client: httpx.Client, stream: bool
) -> None:
    """As Codex CLI sends them."""
    fields = {"client_metadata": {"x-codex-installation-id": "a"}, "tool_choice": "auto", "stream": stream}
    response = client.post(RESPONSES, json=body(tools=[*TOOLS, *OTHER_TOOLS], **fields))
    assert response.status_code == 200, response.text
    assert backend.requests[-1][1].tools == OFFERED
    assert response.headers["x-warning"] == (
        "tools: left out code_interpreter, computer_use_preview, custom, file_search, image_generation, local_shell, "
        "mcp, web_search; only functions can be called"
    )
    whole_response = client.post(RESPONSES, json=body(tools=TOOLS))
    assert "x-warning" not in whole_response.headers
    assert whole(client, tools=[*TOOLS, *OTHER_TOOLS])["tools"] == whole_response.json()["tools"]
    assert sent(backend, client, tools=OTHER_TOOLS).tools == ()


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": name} for name in names],
    }


@pytest.mark.parametrize(
    ("choice", "offered", "forced"),
    [
        (allowed("auto", "add"), 1, ()),
        (allowed("required", "add"), 1, ("add",)),
        (allowed("required", "stop", "add"), 2, ("add", "stop")),
    ],
)
def test_a_choice_among_some_of_the_functions(
    backend: FakeBackend, client: httpx.Client, choice: Any, offered: int, forced: tuple[str, ...]
) -> None:
    request = sent(backend, client, tools=TOOLS, tool_choice=choice)
    assert (request.tools, request.forced_tools) == (OFFERED[:offered], forced)
    response = whole(client, tools=TOOLS, tool_choice=choice)
    assert (response["tool_choice"], len(response["tools"])) == (choice, len(TOOLS))
    others = {**choice, "tools": [*choice["tools"], {"type": "mcp", "server_label": "a"}]}
    assert sent(backend, client, tools=TOOLS, tool_choice=others).tools == request.tools


def test_unknown_fields_of_items_are_ignored(backend: FakeBackend, client: httpx.Client) -> None:
    part = {"type": "input_text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    items = [{"role": "user", "content": [part], "end_turn": True}]
    assert sent(backend, client, input=items).prompts[0] == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [1]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]},
            "input[0].content",
            "unsupported_parameter",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": 1}]},
            "input[0].output",
            "invalid_value",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"store": True}, "store", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "invalid_value"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"tools": [{"type": "websearch"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_parameter"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_parameter"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading", "unsupported_parameter"),
        ({"tools": OTHER_TOOLS, "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": OTHER_TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type", "invalid_value"),
        ({"client_metadata": "codex"}, "client_metadata", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode", "missing_parameter"),
        (
            {"tools": TOOLS, "tool_choice": {**allowed("auto"), "tools": [{"type": "function"}]}},
            "tool_choice.tools[0].name",
            "missing_parameter",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "invalid_value"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "unsupported_parameter"),
        ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: Any, param: str, code: str) -> None:
    error = error_of(client.post(RESPONSES, json=body(**fields)), 400)
    assert (error.param, error.code) == (param, code)
