"""What clients get when the replica that answers them is lost, as Ray Serve's proxy says it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from cluster.serving.http.lost_ingress import LostIngressMiddleware

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


def start(headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def sent(messages: Sequence[Message], scope_type: str = "http") -> list[dict[str, Any]]:
    """What the client gets if the application behind the middleware sends these messages and returns."""
    received: list[Message] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def send(message: Message) -> None:
        received.append(message)

    async def receive() -> Message:
        raise AssertionError("it reads nothing")

    asyncio.run(LostIngressMiddleware(application)({"type": scope_type}, receive, send))
    return [dict(message) for message in received]


def test_a_response_that_has_not_begun_is_a_503() -> None:
    begin, end = sent([])
    headers = dict(begin["headers"])
    assert begin["status"] == 503 and headers[b"retry-after"] == b"1"
    assert headers[b"content-type"] == b"application/json"
    error = json.loads(end["body"])["error"]
    assert (error["type"], error["code"]) == ("server_error", "unavailable")
    assert "lost" in error["message"] and not end["more_body"]


def test_a_stream_that_was_cut_ends_with_an_error() -> None:
    whole = [start(EVENTS), body(b"data: 1\n\n", True)]
    *before, last = sent(whole)
    assert before == whole and not last["more_body"]
    first, done = last["body"].decode().split("\n\n")[:2]
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert done == "data: [DONE]"


@pytest.mark.parametrize(
    "messages",
    [
        [start(JSON), body(b"{}", False)],
        [start(EVENTS), body(b"data: 1\n\n", True), body(b"", False)],
        [start(JSON), body(b"{", True)],  # a length was announced, so the client sees that it is cut
    ],
)
def test_others_stay_as_they_are(messages: list[Message]) -> None:
    assert sent(messages) == messages


def test_so_does_what_is_no_request() -> None:
    assert sent([], "lifespan") == []
