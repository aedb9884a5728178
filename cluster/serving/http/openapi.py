"""The OpenAPI document. Requests are parsed and events are written by hand, so their schemas are added by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from cluster.openai.errors import ErrorObject
from cluster.openai.responses.objects import ResponseEvent, ResponseObject
from cluster.serving.http.responder import WARNING_HEADER

_REFERRED: dict[str, type[BaseModel]] = {}  # fastAPI does not see these models of routes
_SCHEMAS = "#/components/schemas/"
_JSON_TEXT = {"type": "string", "contentMediaType": "application/json"}

_ERROR_DESCRIPTIONS = {
    400: "The request is wrong: `param` names the field, `message` says what is allowed.",
    401: "No API key, or one that is not valid here.",
    403: "This server has no keys: it refuses what web pages of other sites send, or what needs an admin key.",
    404: "There is no such model or request.",
    409: "A request with this X-Request-ID is running.",
    413: "The body is too long.",
    415: "The body is declared to be something else than JSON.",
    429: "The queue is full: try again after Retry-After seconds.",
    499: "The request was cancelled.",
    500: "The server failed in a way that it does not expect.",
    503: "The decode group failed: try again after Retry-After seconds.",
    504: "The deadline came first; `partial` has what was decided so far, if `lopa.partial` asked for it.",
}


def error_responses(statuses: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorObject, "description": _ERROR_DESCRIPTIONS[status]} for status in statuses}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _ref(model)}}}}


def completion_response(chunk: type[BaseModel], completion: type[BaseModel]) -> dict[str, Any]:
    description = (
        f"The whole answer; with `stream: true` server-sent events of {chunk.__name__}, each "
        "`data: {JSON}` and an empty line, then `data: [DONE]`. An error in a stream is an event with `error`."
    )
    data = [
        {"const": "[DONE]"},
        *({**_JSON_TEXT, "contentSchema": _ref(event)} for event in (chunk, ErrorObject)),
    ]
    return {"model": completion, "description": description, "content": _event_stream({"anyOf": data})}


def responses_response() -> dict[str, Any]:
    description = (
        "The whole answer; with `stream: true` server-sent events of ResponseEvent, each `event: TYPE`, `data: {JSON}` "
        "and an empty line. An error in a stream is an event `error`, followed by `response.failed`."
    )
    data = {**_JSON_TEXT, "contentSchema": _ref(ResponseEvent)}
    return {
        "model": ResponseObject,
        "description": description,
        "content": _event_stream(data),
        "headers": {
            WARNING_HEADER: {
                "description": "Tools that were left out, by type.",
                "schema": {"type": "string"},
            }
        },
    }


def _event_stream(data: dict[str, Any]) -> dict[str, Any]:
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    # A keyword of OpenAPI 3.2, which tools take in 3.1 too.
    return {"text/event-stream": {"itemSchema": event}}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, model in _REFERRED.items():
        if name in schemas:  # FastAPI knows it from another route
            continue
        schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    return document


def _ref(model: type[BaseModel]) -> dict[str, str]:
    _REFERRED[model.__name__] = model
    return {"$ref": _SCHEMAS + model.__name__}
