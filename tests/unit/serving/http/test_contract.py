"""The OpenAPI document and the server agree, whatever is sent."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from pydantic import BaseModel

from cluster.openai.response_model import ResponseModel
from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.protocol.messages import GroupMessage
from lopa_ray.text.client_object import ClientObject
from support.fake_backend import MODEL, FakeBackend

BACKEND = FakeBackend()
schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(lambda: BACKEND, HttpSettings()))
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


@schema.parametrize()
@hypothesis.settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_contract(case: schemathesis.Case) -> None:
    # Hardly any text is the name of a model.
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    case.call_and_validate(checks=CHECKS)


def test_every_model_in_the_document_has_a_name_of_its_own() -> None:
    """The document has one schema per name, so of two models one would be described by the other's."""

    def descendants(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for child in model.__subclasses__():
            yield child
            yield from descendants(child)

    modules: dict[str, set[str]] = {}
    for model in (*descendants(ClientObject), *descendants(ResponseModel), *descendants(GroupMessage)):
        modules.setdefault(model.__name__, set()).add(model.__module__)
    assert [(name, defined_in) for name, defined_in in modules.items() if len(defined_in) > 1] == []


def demanding(document: dict[str, Any]) -> dict[str, Any]:
    """The document with requests that have tools, calls, results and reasoning: of what may be left out, chance takes
    too little."""
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    fields = schemas["ChatMessage"]["properties"]

    def message(roles: list[str], *names: str) -> dict[str, Any]:
        properties = {name: without_null(fields[name]) for name in names} | {"role": {"enum": roles}}
        if roles != ["assistant"]:  # no other role refuses
            parts = {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}, "minItems": 1}
            properties["content"] = parts
        return {
            "type": "object",
            "properties": properties,
            "required": ["role", *names],
            "additionalProperties": False,
        }

    schemas["ChatMessage"] = {
        "anyOf": [
            message(["system", "user"], "content"),
            message(["assistant"], "content", "tool_calls", "reasoning_content"),
            message(["tool"], "content", "tool_call_id"),
        ]
    }
    for name, demanded in DEMANDED.items():
        properties = schemas[name]["properties"]
        for field in demanded:
            properties[field] = without_null(properties[field])
        schemas[name]["required"] = list({*schemas[name].get("required", []), *demanded})
    # What the others forbid.
    for name, forbidden in (
        ("ResponsesRequest", ("store", "previous_response_id")),
        ("TokenizeRequest", ("prompt",)),
    ):
        for field in forbidden:
            del schemas[name]["properties"][field]
    schemas["ResponsesRequest"]["properties"]["input"]["anyOf"].pop(0)  # a text
    return document


def without_null(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that has to be given, as a list with something in it."""
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    return {"anyOf": [kind | ({"minItems": 1} if kind.get("type") == "array" else {}) for kind in kinds]}


DEMANDED = {
    "ChatRequest": ("tools", "messages"),
    "ResponsesRequest": ("tools", "input", "text", "reasoning"),
    "MessageItem": ("content",),
    "TokenizeRequest": ("tools", "messages"),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
def test_requests_with_tools_and_calls(path: str) -> None:
    app = create_app(lambda: BACKEND, HttpSettings())
    document = demanding(app.openapi())
    app.openapi = lambda: document  # type: ignore[method-assign]
    statuses: Counter[int] = Counter()

    @hypothesis.given(case=schemathesis.openapi.from_asgi("/openapi.json", app)[path]["POST"].as_strategy())
    @hypothesis.settings(max_examples=10, suppress_health_check=list(hypothesis.HealthCheck))
    def check(case: schemathesis.Case) -> None:
        assert isinstance(case.body, dict)
        case.body["model"] = MODEL
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        statuses[response.status_code] += 1

    check()
    assert statuses[200] >= 3, statuses
