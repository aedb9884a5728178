"""Requests to the Responses API of a fake server, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx

from cluster.openai.responses.objects import ResponseEvent, ResponseObject
from support.fake_backend import MODEL, RESPONSES

ADD = {
    "type": "function",
    "name": "add",
    "description": "the sum",
    "parameters": {"type": "object", "const": None},
    "strict": True,
}
STOP = {"type": "function", "name": "stop"}
TOOLS: list[Any] = [ADD, STOP]


def body(**fields: Any) -> dict[str, Any]:
    """A request that is right, with `fields` on top."""
    return {"model": MODEL, "input": "hi", **fields}


def whole(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The response to a request without a stream."""
    response = client.post(RESPONSES, json=body(**fields))
    assert response.status_code == 200, response.text
    ResponseObject.model_validate(response.json())
    response_object: dict[str, Any] = response.json()
    return response_object


def events(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each with the name and the number that it should have."""
    response = client.post(RESPONSES, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    *parts, end = response.content.split(b"\n\n")
    assert end == b""
    parsed = []
    for number, part in enumerate(parts):
        name, data = part.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        ResponseEvent.model_validate(event)
        assert name == b"event: " + event["type"].encode() and event["sequence_number"] == number
        parsed.append(event)
    return parsed


def anonymous(response: dict[str, Any]) -> dict[str, Any]:
    """Without ids and times, which differ."""
    gone = ("id", "call_id", "created_at", "completed_at")
    text = json.dumps(response)
    value: dict[str, Any] = json.loads(
        text, object_hook=lambda fields: {key: inner for key, inner in fields.items() if key not in gone}
    )
    return value


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in the message that templates get."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
