"""Who a request comes from."""

from __future__ import annotations

import httpx
import pytest

from support.fake_backend import CHAT, HI, MODEL, RESPONSES, TEXT, Server, serving

pytestmark = pytest.mark.medium

BODIES = {
    CHAT: {"model": MODEL, "messages": HI, "priority": -3},
    TEXT: {"model": MODEL, "prompt": "hi", "priority": -3},
    RESPONSES: {"model": MODEL, "input": "hi", "priority": -3},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_group_is_told_the_client_and_the_priority_but_no_key(path: str) -> None:
    keys = ["first-secret", "second-secret"]
    with serving(api_keys=keys) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        for key in keys:
            response = client.post(path, json=BODIES[path], headers={"Authorization": f"Bearer {key}"})
            assert response.status_code == 200, response.text
        requests = [request for _, request in server.backend.requests]
    assert [(request.client, request.priority) for request in requests] == [("key 1", -3), ("key 2", -3)]
    assert "secret" not in repr(requests)


def test_without_keys_clients_are_addresses(server: Server, client: httpx.Client) -> None:
    assert client.post(CHAT, json=BODIES[CHAT]).status_code == 200
    assert server.backend.requests[-1][1].client == "address 127.0.0.1"
