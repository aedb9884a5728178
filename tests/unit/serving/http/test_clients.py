"""Who a request comes from, and what each client may use."""

from __future__ import annotations

import httpx
import pytest

from cluster.openai.errors import ApiError
from cluster.serving.http.client_limits import MAX_CLIENTS, ClientLimits
from cluster.serving.settings import HttpSettings
from support.fake_backend import CHAT, HI, MODEL, RESPONSES, TEXT, error_of, serving

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


def test_without_keys_clients_are_addresses_and_each_has_its_limits() -> None:
    with serving(requests_per_minute=2) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        responses = [client.post(CHAT, json=BODIES[CHAT]) for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        error = error_of(responses[2], 429)
        assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert 1 <= int(responses[2].headers["retry-after"]) <= 30
        assert [request.client for _, request in server.backend.requests] == ["address 127.0.0.1"] * 2


def test_tokens_count_when_a_request_ends() -> None:
    now = 0.0
    limits = ClientLimits(HttpSettings(tokens_per_minute=60, tokens_per_day=1000), clock=lambda: now)
    limits.admit("a")
    limits.charge("a", 90)
    limits.admit("b")
    with pytest.raises(ApiError, match="60 tokens per minute; wait for 31 s"):
        limits.admit("a")
    now = 31.0
    limits.admit("a")
    limits.charge("a", 2000)
    now = 7000.0
    with pytest.raises(ApiError, match="1000 tokens per day"):
        limits.admit("a")
    now = 200_000.0
    limits.admit("a")


def test_clients_that_have_used_nothing_lately_are_forgotten() -> None:
    now = 0.0
    limits = ClientLimits(HttpSettings(requests_per_minute=1), clock=lambda: now)
    for number in range(MAX_CLIENTS):
        limits.admit(f"address {number}")
    now = 61.0
    limits.admit("one more")
    assert len(limits._buckets) == 1
