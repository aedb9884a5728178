"""What both routes of decisions share with the others: cancellation, bodies."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import threading

import httpx

from support.decision_requests import DECISIONS, IS_URGENT
from support.fake_backend import MODEL, Server, error_of
from support.waiting import wait_until

BODY = {"model": MODEL, "input": "x", "questions": [IS_URGENT]}


def test_a_running_decision_is_cancelled(server: Server, client: httpx.Client) -> None:
    server.backend.hold = True
    responses: list[httpx.Response] = []

    def run() -> None:
        headers = {"X-Request-ID": "mine"}
        responses.append(httpx.post(f"{server.url}{DECISIONS}", json=BODY, headers=headers, timeout=30))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: server.backend.running)
    again = client.post(DECISIONS, json=BODY, headers={"X-Request-ID": "mine"})
    assert error_of(again, 409).code == "request_id_in_use"
    assert client.delete("/v1/requests/mine").status_code == 200
    thread.join(20)
    assert error_of(responses[0], 499).code == "request_cancelled"


def test_a_client_that_leaves_ends_its_decision(server: Server) -> None:
    server.backend.hold = True
    address = server.url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request("POST", DECISIONS, json.dumps(BODY), {"Content-Type": "application/json"})
        wait_until(lambda: server.backend.running)
    wait_until(lambda: server.backend.closed)
    assert not server.backend.running


def test_a_compressed_body_is_read(server: Server, client: httpx.Client) -> None:
    body = gzip.compress(json.dumps(BODY).encode())
    response = client.post(DECISIONS, content=body, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 200, response.text
    assert len(server.backend.decisions) == 1
