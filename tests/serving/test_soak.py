"""However much is sent: answers are the expected ones, memory stays as it is."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import CHAT, SLOW, ClientRequest, content, events, random_requests
from support.server_process import ServerProcess

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


def test_soak(server: ServerProcess, client: httpx.Client, engines: dict[str, LocalEngine]) -> None:
    """Mixed requests, eight at a time: whole, streamed, disconnected, cancelled, cut off by a deadline, wrong."""
    requests = random_requests(seed=7, count=40)
    expected = [request.decode_locally(engines["demo"]).text for request in requests]
    outcomes: dict[str, int] = {}
    lock = threading.Lock()

    def send_one(number: int) -> None:
        rng = random.Random(number)
        client_action = rng.choice(
            ["whole", "whole", "stream", "stream", "disconnect", "cancel", "deadline", "wrong"]
        )
        at = rng.randrange(len(requests))
        if client_action == "whole":
            assert requests[at].send(client).text == expected[at]
        elif client_action == "stream":
            assert streamed(client, requests[at]) == expected[at]
        elif client_action == "disconnect":
            body = ClientRequest(settings=SLOW).body(stream=True)
            with client.stream("POST", CHAT, json=body) as response:
                assert response.status_code == 200
                next(response.iter_lines())
        elif client_action == "cancel":
            body = ClientRequest(settings=SLOW).body(stream=True)
            with client.stream("POST", CHAT, json=body) as response:
                cancelled = client.delete(f"/v1/requests/{response.headers['x-request-id']}")
                assert cancelled.status_code == 200
                assert "request_cancelled" in response.read().decode()
        elif client_action == "deadline":
            body = ClientRequest(settings=SLOW).body(lopa={"deadline": 0.2, "partial": True})
            assert client.post(CHAT, json=body).status_code == 504
        else:
            assert client.post(CHAT, json=requests[at].body(max_tokens=10_000)).status_code == 400
        with lock:
            outcomes[client_action] = outcomes.get(client_action, 0) + 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send_one, range(200)))
        before = memory(server)
        list(pool.map(send_one, range(200, 800)))
        after = memory(server)
    print(outcomes)
    assert sum(outcomes.values()) == 800 and len(outcomes) == 6
    assert before.keys() == after.keys()
    for process, (name, was) in before.items():
        _, now = after[process]
        print(f"{name:40} {was / 2**20:7.1f} → {now / 2**20:7.1f} MiB")
    grown = {
        name: (was, after[p][1]) for p, (name, was) in before.items() if after[p][1] > 1.05 * was + 2**22
    }
    assert not grown
    assert requests[0].send(client) == requests[0].decode_locally(engines["demo"])


def memory(server: ServerProcess) -> dict[int, tuple[str, int]]:
    """Name and resident bytes of the server's processes."""
    return {process.pid: (name_of(process), process.memory_info().rss) for process in server.processes()}


def name_of(process: psutil.Process) -> str:
    words = process.cmdline()
    return " ".join(word.rpartition("/")[2] for word in words[:3])[:40].partition(".")[0]


def streamed(client: httpx.Client, request: ClientRequest) -> str:
    with client.stream("POST", CHAT, json=request.body(stream=True)) as response:
        response.raise_for_status()
        return "".join(map(content, events(response.iter_lines())))
