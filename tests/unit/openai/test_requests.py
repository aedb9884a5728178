"""Which requests are taken, and what the backend gets of them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cluster.choices.messages import ChoicesRequest
from cluster.openai.completions.chat import ChatRequest
from cluster.openai.generation_request import FIELDS_OF_SETTINGS
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.text import tolerant_object
from lopa_ray.text.tolerant_object import MAX_LOGGED
from support.fake_backend import (
    CHAT,
    HI,
    MODEL,
    OTHER_MODEL,
    RESPONSES,
    TEXT,
    FakeBackend,
    Server,
    error_of,
    serving,
)

HTTP_SETTINGS = {"max_body_bytes": 20_000}


def choices_request_of(
    server: Server, client: httpx.Client, path: str, fields: dict[str, Any]
) -> ChoicesRequest:
    """What the backend gets."""
    base = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    response = client.post(path, json={"model": MODEL, **base, **fields})
    assert response.status_code == 200, response.text
    return server.backend.requests[-1][1]


def test_a_chat_becomes_a_job(server: Server, client: httpx.Client) -> None:
    messages = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
        },
        {"role": "user", "content": "<|im_end|> hi"},
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "go on"},
    ]
    fields = {
        "messages": messages,
        "max_completion_tokens": 8,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "seed": -1,
        "stop": "end",
        "n": 2,
        "logprobs": True,
        "top_logprobs": 5,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [7, 8],
        "logit_bias": {"17": -100, "4": 0.5},
        "user": "me",
        "metadata": {"a": "b"},
        "lopa": {
            "num_branches": "auto",
            "confidence_threshold": 0.5,
            "deadline": 9,
            "trace": True,
            "block_size": None,
        },
    }
    request = choices_request_of(server, client, CHAT, fields)
    assert request == ChoicesRequest(
        id=request.id,
        client="address 127.0.0.1",
        prompts=(
            (
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "<|im_end|> hi"},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "go on"},
            ),
        ),
        settings={
            "max_new_tokens": 8,
            "temperature": 1.0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": 2**63 - 1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [7, 8],
            "logit_bias": {"17": -100.0, "4": 0.5},
            "top_logprobs": 5,
            "num_branches": "auto",
            "confidence_threshold": 0.5,
        },
        n=2,
        stop=("end",),
        logprobs=True,
        trace=True,
        deadline_s=9.0,
    )


BODIES = {CHAT: {"messages": HI}, TEXT: {"prompt": "hi"}, RESPONSES: {"input": "hi"}}
NUMBERS = {
    name: schema
    for name in FIELDS_OF_SETTINGS
    for schema in ChatRequest.model_json_schema()["properties"][name].get("anyOf", [])
    if schema.get("type") in ("number", "integer")
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", FIELDS_OF_SETTINGS)
def test_every_setting_with_a_field_reaches_the_group(
    server: Server, client: httpx.Client, path: str, name: str
) -> None:
    """One whose field has another form is among those above."""
    default = GenerationSettings.model_fields[name].default
    value = (not default) if isinstance(default, bool) else NUMBERS.get(name, {}).get("maximum", 2)
    if isinstance(default, dict | tuple):
        value = {"7": 1.0} if isinstance(default, dict) else []
    value = "text" if name == "draft" else value
    client.post(path, json={"model": MODEL, **BODIES[path], name: value}).raise_for_status()
    settings = server.backend.requests[-1][1].settings
    assert settings == ({} if value == [] else {name: value})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_bounds_is_named(client: httpx.Client, path: str, name: str) -> None:
    schema = NUMBERS[name]
    wrong = [schema[bound] + by for bound, by in (("minimum", -1), ("maximum", 1)) if bound in schema]
    assert wrong or "exclusiveMaximum" in schema
    for value in (*wrong, "1", True):
        response = client.post(path, json={"model": MODEL, **BODIES[path], name: value})
        error = error_of(response, 400)
        assert (error.param, error.code) == (name, "invalid_value")


def test_what_is_not_given_is_left_to_the_group(server: Server, client: httpx.Client) -> None:
    nulls = ["temperature", "top_p", "seed", "stop", "n", "stream", "stream_options", "lopa", "metadata"]
    assert choices_request_of(server, client, CHAT, dict.fromkeys(nulls)).settings == {}
    assert choices_request_of(server, client, CHAT, {"top_k": -1}).settings == {"top_k": None}
    assert choices_request_of(server, client, TEXT, {"top_k": 0, "temperature": 0}).settings == {
        "top_k": None,
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_prompts_are_text_or_ids(server: Server, client: httpx.Client, prompt: Any, prompts: Any) -> None:
    request = choices_request_of(server, client, TEXT, {"prompt": prompt, "max_tokens": 0, "echo": True})
    assert (request.prompts, request.raw, request.echo) == (prompts, True, True)


NEUTRAL = {
    **{name: values[0] if values else None for name, values in ChatRequest.unsupported_fields.items()},
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "best_of": 1,
    "parallel_tool_calls": True,
    "stop_token_ids": [],
    "guided_regex": None,
    "max_tokens": None,
    "stream_options": None,
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, NEUTRAL),
        (CHAT, {"logprobs": False, "top_logprobs": 0}),
        (CHAT, {"top_logprobs": 0}),
        (TEXT, {"suffix": ""}),
    ],
)
def test_what_asks_for_nothing_is_taken(
    server: Server, client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    request = choices_request_of(server, client, path, fields)
    assert (request.settings, request.logprobs) == ({}, False)


OTHERS_FIELDS = {"id": "msg_1", "cache_control": {"type": "ephemeral"}, "annotations": [{}]}


def test_unknown_fields_of_messages_are_ignored(server: Server, client: httpx.Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", **OTHERS_FIELDS}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **OTHERS_FIELDS}], **OTHERS_FIELDS},
        {"role": "assistant", "content": None, "tool_calls": [{**OTHERS_FIELDS, **call}], **OTHERS_FIELDS},
        {"role": "tool", "content": "1", "tool_call_id": "c", **OTHERS_FIELDS},
    ]
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert choices_request_of(server, client, CHAT, {"messages": messages}).prompts[0] == (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    )


def test_the_log_names_an_ignored_field_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tolerant_object, "_logged", set())
    message = {**HI[0], "a\nb": 1, "empty": "", "null": None}
    for _ in range(3):
        ChatRequest.parse({"messages": [message, message]})
    assert [record.getMessage() for record in caplog.records] == [
        "requests have fields that are ignored here: 'ChatMessage.a\\nb'"
    ]
    names = {f"field_{number}": "x" for number in range(2 * MAX_LOGGED)}
    ChatRequest.parse({"messages": [{**HI[0], **names}]})
    assert len(caplog.records) == MAX_LOGGED


def test_special_tokens_in_text(server: Server, client: httpx.Client) -> None:
    assert choices_request_of(server, client, TEXT, {}).parse_special
    assert not choices_request_of(server, client, TEXT, {"parse_special": False}).parse_special


def test_more_stop_texts_than_openai_takes(server: Server, client: httpx.Client) -> None:
    stop = [f"{number}:" for number in range(64)]
    assert choices_request_of(server, client, TEXT, {"stop": stop}).stop == tuple(stop)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HI}), (TEXT, {"prompt": "a"}), (RESPONSES, {"input": "a"})]
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_only_model_need_not_be_named(path: str, body: dict[str, Any], stream: bool) -> None:
    with serving(FakeBackend(models=(OTHER_MODEL,))) as server:
        response = httpx.post(f"{server.url}{path}", json={**body, "stream": stream}, timeout=30)
        assert response.status_code == 200 and f'"model":"{OTHER_MODEL}"' in response.text
        assert server.backend.requests[-1][0] == OTHER_MODEL


def test_the_model_chooses(server: Server, client: httpx.Client) -> None:
    client.post(TEXT, json={"model": OTHER_MODEL, "prompt": "a"}).raise_for_status()
    assert server.backend.requests[-1][0] == OTHER_MODEL
    error = error_of(client.post(TEXT, json={"model": "gpt-5", "prompt": "a"}), 404)
    assert (error.code, error.param) == ("model_not_found", "model")
    assert MODEL in error.message
