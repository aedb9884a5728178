"""Slots and queues: overload, clients that go away, cancellation, deadlines.

Model demo-d2f has one slot. How long a request waited for it says whether it was free.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client import QUESTIONS, SLOW, Ask, Response, told
from support.server_process import Served, wait_until

HELD = Ask(settings=SLOW, model="demo-d2f")
SHORT = Ask(settings={"max_new_tokens": 8}, model="demo-d2f")

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def held(client: httpx.Client) -> Response:
    """What a request says that nobody ends."""
    return HELD.of_server(client)


@pytest.fixture(scope="module")
def held_s(client: httpx.Client, held: Response) -> float:
    """Seconds for which it holds a slot."""
    assert wait_s(client) < 1
    return held.seconds


def wait_s(client: httpx.Client) -> float:
    """Seconds that a request waits for the slot."""
    response = client.post(CHAT, json=SHORT.body())
    response.raise_for_status()
    return float(response.json()["lopa"]["queued_seconds"])


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """What a stream says before [DONE]."""
    for line in filter(None, lines):
        assert line.startswith("data: ")
        if line == "data: [DONE]":
            return
        yield json.loads(line.removeprefix("data: "))


def texts(stream: Iterator[dict[str, Any]]) -> Iterator[str]:
    for event in stream:
        for choice in event.get("choices", ()):
            if choice["delta"].get("content"):
                yield choice["delta"]["content"]


# Overload


def test_too_many_requests_get_429_and_nobody_else_suffers(
    client: httpx.Client, engines: dict[str, LocalEngine]
) -> None:
    settings = {"max_new_tokens": 32, "ignore_eos": True, "confidence_threshold": 1.0}
    asks = [Ask(question, settings, "demo-d2f") for question in QUESTIONS[:16]]
    with ThreadPoolExecutor(len(asks)) as pool:
        responses = list(pool.map(lambda ask: client.post(CHAT, json=ask.body()), asks))
    refused = [response for response in responses if response.status_code == 429]
    answered = [(ask, r) for ask, r in zip(asks, responses, strict=True) if r.status_code == 200]
    assert refused and len(answered) >= 2
    assert len(refused) + len(answered) == len(asks)
    for response in refused:
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    for ask, response in answered:
        assert told(response.json()["choices"][0]) == ask.of_engine(engines["demo-d2f"])
    # As if nothing had been.
    for ask in asks[:2]:
        assert ask.of_server(client) == ask.of_engine(engines["demo-d2f"])


def test_openai_client_comes_again_after_429(server: Served) -> None:
    with (
        server.openai(max_retries=20) as ai,
        ThreadPoolExecutor(12) as pool,
    ):
        asked = [
            pool.submit(
                ai.completions.create,
                model="demo-d2f",
                prompt=question,
                max_tokens=32,
                extra_body={"ignore_eos": True},
            )
            for question in QUESTIONS[:12]
        ]
        assert {reply.result().choices[0].finish_reason for reply in asked} == {"length"}


# Clients that go away


@contextlib.contextmanager
def raw_request(server: Served, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    lines = ["Host: localhost", f"Authorization: Bearer {server.key}", f"Content-Length: {len(data)}"]
    head = "\r\n".join([f"POST {CHAT} HTTP/1.1", *lines, "", ""])
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + data)
        yield connection


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    """As the kernel does for a process that is killed with data unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_some_text(connection: socket.socket) -> None:
    got = b""
    while not re.search(rb'"content":"[^"]', got):
        got += connection.recv(65536)
        assert got.startswith(b"HTTP/1.1 200"), got


@pytest.mark.parametrize("leave", [close, reset])
def test_a_stream_that_nobody_reads_any_more_ends(
    server: Served, client: httpx.Client, held_s: float, leave: Callable[[socket.socket], None]
) -> None:
    with raw_request(server, HELD.body(stream=True)) as connection:
        read_some_text(connection)
        leave(connection)
    assert wait_s(client) < held_s / 5


def test_a_whole_answer_that_nobody_waits_for_ends(
    server: Served, client: httpx.Client, held_s: float
) -> None:
    with raw_request(server, HELD.body()):
        time.sleep(0.5)
    assert wait_s(client) < held_s / 5


def test_clients_that_go_away_while_they_wait_never_get_a_slot(
    server: Served, client: httpx.Client, held_s: float
) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(raw_request(server, HELD.body(stream=True)))
        read_some_text(first)
        # The second waits for the slot, the third in front of the group.
        for _ in range(2):
            stack.enter_context(raw_request(server, HELD.body()))
            time.sleep(0.2)
    assert wait_s(client) < held_s / 5


# Cancellation


def test_a_running_request_can_be_cancelled(client: httpx.Client, held_s: float) -> None:
    with ThreadPoolExecutor(1) as pool:
        name = {"X-Request-ID": "to-be-cancelled"}
        asked = pool.submit(client.post, CHAT, json=HELD.body(), headers=name)
        url = "/v1/requests/to-be-cancelled"
        wait_until(lambda: client.delete(url).status_code == 200, 10, "the request to run")
        response = asked.result(timeout=held_s / 2)
    assert (response.status_code, response.json()["error"]["code"]) == (499, "request_cancelled")
    assert response.headers.get_list("x-request-id") == ["to-be-cancelled"]
    assert wait_s(client) < held_s / 5
    assert client.delete(url).status_code == 404


def test_a_stream_can_be_cancelled(client: httpx.Client, held_s: float) -> None:
    with client.stream("POST", CHAT, json=HELD.body(stream=True)) as response:
        assert response.status_code == 200
        stream = events(response.iter_lines())
        next(texts(stream))
        cancelled = client.delete(f"/v1/requests/{response.headers['x-request-id']}").json()
        assert cancelled["cancelled"] is True
        *_, last = stream
    assert last["error"]["code"] == "request_cancelled"
    assert wait_s(client) < held_s / 5


# Deadlines


def test_a_deadline_ends_a_request(client: httpx.Client, held_s: float) -> None:
    response = client.post(CHAT, json=HELD.body(lopa={"deadline": held_s / 5}))
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert "partial" not in response.json()
    assert wait_s(client) < held_s / 5


def test_a_deadline_may_give_what_was_decided(client: httpx.Client, held: Response, held_s: float) -> None:
    response = client.post(CHAT, json=HELD.body(lopa={"deadline": held_s / 3, "partial": True}))
    assert response.status_code == 504
    partial = told(response.json()["partial"]["choices"][0])
    assert partial.finish_reason is None
    assert 0 < len(partial.text) < len(held.text) and held.text.startswith(partial.text)
    assert partial.tokens == held.tokens[: len(partial.tokens)]
    assert 0 < partial.steps < held.steps


def test_a_stream_says_that_its_deadline_came(client: httpx.Client, held: Response, held_s: float) -> None:
    body = HELD.body(stream=True, lopa={"deadline": held_s / 3, "partial": True})
    with client.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        told_of = list(events(response.iter_lines()))
    text, last = "".join(texts(iter(told_of))), told_of[-1]
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["partial"]["choices"][0]["message"]["content"] == text
    assert text and held.text.startswith(text)


def test_a_deadline_holds_while_a_request_waits(server: Served, client: httpx.Client, held_s: float) -> None:
    with raw_request(server, HELD.body(stream=True)) as connection:
        read_some_text(connection)
        began = time.monotonic()
        # One waits for the slot, the other in front of the group.
        waiting: list[Future[httpx.Response]] = []
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                body = SHORT.body(lopa={"deadline": held_s / 5})
                waiting.append(pool.submit(client.post, CHAT, json=body))
        assert [each.result().status_code for each in waiting] == [504, 504]
        # The group's word comes at the deadline, that of the ingress a second later.
        assert time.monotonic() - began < held_s / 5 + 2


def test_openai_client_does_not_repeat_what_ran_into_its_deadline(server: Served, held_s: float) -> None:
    with server.openai(max_retries=5) as ai:
        began = time.monotonic()
        with pytest.raises(openai.InternalServerError, match="deadline"):
            ai.completions.create(
                model="demo-d2f",
                prompt="Tom",
                max_tokens=400,
                extra_body={
                    "ignore_eos": True,
                    "lopa": {"deadline": held_s / 5, "confidence_threshold": 1.0},
                },
            )
        assert time.monotonic() - began < 2 * held_s / 5 + 1
