"""Structured output over HTTP: which field sets which decode setting, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lopa_ray.decoding.decoders.lopa import LopaSettings
from support.fake_backend import CHAT, MODEL, TEXT, Server

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False)
ANY_OBJECT = '{"type": "object"}'


def ask(client: httpx.Client, path: str, fields: dict[str, Any]) -> httpx.Response:
    base = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return client.post(path, json={"model": MODEL, **base, **fields})


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": SCHEMA}}},
            {"guided_json": SCHEMA_TEXT},
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, {"guided_json": ANY_OBJECT}),
        ({"response_format": {"type": "json_object"}}, {"guided_json": ANY_OBJECT}),
        ({"response_format": {"type": "text"}, "guided_regex": "a+"}, {"guided_regex": "a+"}),
        ({"guided_json": SCHEMA}, {"guided_json": SCHEMA_TEXT}),
        ({"guided_json": SCHEMA_TEXT}, {"guided_json": SCHEMA_TEXT}),
        ({"guided_choice": ["a", "b"]}, {"guided_choice": ["a", "b"]}),
        ({"structured_outputs": {"json": SCHEMA}}, {"guided_json": SCHEMA_TEXT}),
        ({"structured_outputs": {"json_object": True}}, {"guided_json": ANY_OBJECT}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"guided_regex": "a+"}),
        ({"structured_outputs": {"choice": ["a"]}}, {"guided_choice": ["a"]}),
        ({"structured_outputs": {"json_object": False, "disable_fallback": True}}, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_fields_become_a_setting(
    server: Server, client: httpx.Client, path: str, fields: Any, settings: Any
) -> None:
    response = ask(client, path, fields)
    assert response.status_code == 200, response.text
    request = server.backend.requests[-1][1]
    assert request.settings == settings
    assert LopaSettings(**request.settings).constrained == bool(settings)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "need each other"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format", "need each other"),
        ({"guided_json": 3}, "guided_json", "got 3; allowed: a JSON schema"),
        ({"guided_choice": []}, "guided_choice", "got []"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "excludes guided_json"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "excludes response_format",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(client: httpx.Client, fields: Any, param: str, said: str) -> None:
    response = ask(client, CHAT, fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [300, 900])
def test_a_schema_that_is_nested_deeply_is_never_the_servers_fault(client: httpx.Client, depth: int) -> None:
    schema = '{"items":' * depth + "{}" + "}" * depth
    response = client.post(TEXT, content=f'{{"model": "{MODEL}", "prompt": "hi", "guided_json": {schema}}}')
    assert response.status_code in (200, 400), response.text
