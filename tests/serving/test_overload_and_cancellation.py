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
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import CHAT, PROMPTS, SLOW, ClientRequest, ClientResponse, content, events
from support.server_process import ServerProcess
from support.waiting import wait_until

LONG_REQUEST = ClientRequest(settings=SLOW, model="demo-d2f")
SHORT_REQUEST = ClientRequest(settings={"max_new_tokens": 8}, model="demo-d2f")

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def long_response(client: httpx.Client) -> ClientResponse:
    """LONG_REQUEST, decoded to its end."""
    return LONG_REQUEST.send(client)


@pytest.fixture(scope="module")
def long_s(client: httpx.Client, long_response: ClientResponse) -> float:
    """Seconds for which LONG_REQUEST holds a slot."""
    assert queued_s(client) < 1
    return long_response.seconds


def queued_s(client: httpx.Client) -> float:
    """Seconds that a request waits for the slot."""
    response = client.post(CHAT, json=SHORT_REQUEST.body())
    response.raise_for_status()
    return float(response.json()["lopa"]["queued_seconds"])


# Overload


def test_too_many_requests_get_429_and_nobody_else_suffers(
    client: httpx.Client, engines: dict[str, LocalEngine]
) -> None:
    settings = {"max_new_tokens": 32, "ignore_eos": True, "confidence_threshold": 1.0}
    requests = [ClientRequest(prompt, settings, "demo-d2f") for prompt in PROMPTS[:16]]
    with ThreadPoolExecutor(len(requests)) as pool:
        responses = list(pool.map(lambda request: client.post(CHAT, json=request.body()), requests))
    refused = [response for response in responses if response.status_code == 429]
    answered = [(request, r) for request, r in zip(requests, responses, strict=True) if r.status_code == 200]
    assert refused and len(answered) >= 2
    assert len(refused) + len(answered) == len(requests)
    for response in refused:
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    for request, response in answered:
        assert ClientResponse.from_choice(response.json()["choices"][0]) == request.decode_locally(
            engines["demo-d2f"]
        )
    # As if nothing had been.
    for request in requests[:2]:
        assert request.send(client) == request.decode_locally(engines["demo-d2f"])


HUGE = ClientRequest(
    settings={
        "max_new_tokens": 1900,
        "ignore_eos": True,
        "num_branches": 1024,
        "block_size": 1900,
        "confidence_threshold": 1.0,
    }
)
"""From its second step on some two million rows: minutes of each step."""


@pytest.mark.slow
def test_a_huge_request_does_not_hold_others(client: httpx.Client, engines: dict[str, LocalEngine]) -> None:
    with client.stream("POST", CHAT, json=HUGE.body(stream=True, lopa={"stream_canvas": True})) as response:
        next(event for event in events(response.iter_lines()) if "canvas" in event.get("lopa", {}))
        for prompt in PROMPTS[:4]:
            request = ClientRequest(prompt)
            assert request.send(client) == request.decode_locally(engines["demo"])


# Clients that go away


@contextlib.contextmanager
def raw_request(server: ServerProcess, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    lines = ["Host: localhost", f"Authorization: Bearer {server.api_key}", f"Content-Length: {len(data)}"]
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
    received = b""
    while not re.search(rb'"content":"[^"]', received):
        received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200"), received


@pytest.mark.parametrize("leave", [close, reset])
def test_a_stream_that_nobody_reads_any_more_ends(
    server: ServerProcess, client: httpx.Client, long_s: float, leave: Callable[[socket.socket], None]
) -> None:
    with raw_request(server, LONG_REQUEST.body(stream=True)) as connection:
        read_some_text(connection)
        leave(connection)
    assert queued_s(client) < long_s / 5


def test_a_whole_answer_that_nobody_waits_for_ends(
    server: ServerProcess, client: httpx.Client, long_s: float
) -> None:
    with raw_request(server, LONG_REQUEST.body()):
        time.sleep(0.5)
    assert queued_s(client) < long_s / 5


def test_clients_that_go_away_while_they_wait_never_get_a_slot(
    server: ServerProcess, client: httpx.Client, long_s: float
) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(raw_request(server, LONG_REQUEST.body(stream=True)))
        read_some_text(first)
        # The second waits for the slot, the third in front of the group.
        for _ in range(2):
            stack.enter_context(raw_request(server, LONG_REQUEST.body()))
            time.sleep(0.2)
        # The page of metrics waits for no busy group.
        assert re.search(
            r'^lopa_replica_up{model="demo-d2f".*} 1\.0$', client.get("/metrics").text, re.MULTILINE
        )
    assert queued_s(client) < long_s / 5


# Cancellation


def test_a_running_request_can_be_cancelled(client: httpx.Client, long_s: float) -> None:
    with ThreadPoolExecutor(1) as pool:
        name = {"X-Request-ID": "to-be-cancelled"}
        future = pool.submit(client.post, CHAT, json=LONG_REQUEST.body(), headers=name)
        url = "/v1/requests/to-be-cancelled"
        wait_until(lambda: client.delete(url).status_code == 200, "the request to run")
        response = future.result(timeout=long_s / 2)
    assert (response.status_code, response.json()["error"]["code"]) == (499, "request_cancelled")
    assert response.headers.get_list("x-request-id") == ["to-be-cancelled"]
    assert queued_s(client) < long_s / 5
    assert client.delete(url).status_code == 404


# Deadlines


def test_a_deadline_ends_a_request(client: httpx.Client, long_s: float) -> None:
    response = client.post(CHAT, json=LONG_REQUEST.body(lopa={"deadline": long_s / 5}))
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert "partial" not in response.json()
    assert queued_s(client) < long_s / 5


def test_a_stream_says_that_its_deadline_came(
    client: httpx.Client, long_response: ClientResponse, long_s: float
) -> None:
    body = LONG_REQUEST.body(stream=True, lopa={"deadline": long_s / 3, "partial": True})
    with client.stream("POST", CHAT, json=body) as response:
        *received, last = events(response.iter_lines())
    text = "".join(map(content, received))
    assert last["error"]["code"] == "deadline_exceeded"
    assert last["partial"]["choices"][0]["message"]["content"] == text
    assert text and text != long_response.text and long_response.text.startswith(text)


def test_a_deadline_holds_while_a_request_waits(
    server: ServerProcess, client: httpx.Client, long_s: float
) -> None:
    with raw_request(server, LONG_REQUEST.body(stream=True)) as connection:
        read_some_text(connection)
        began = time.monotonic()
        # One waits for the slot, the other in front of the group.
        waiting: list[Future[httpx.Response]] = []
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                body = SHORT_REQUEST.body(lopa={"deadline": long_s / 5})
                waiting.append(pool.submit(client.post, CHAT, json=body))
        assert [response.result().status_code for response in waiting] == [504, 504]
        # The group answers at the deadline, the ingress a second later.
        assert time.monotonic() - began < long_s / 5 + 2
