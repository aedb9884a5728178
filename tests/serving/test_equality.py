"""Tokens never depend on who decodes them, on how many workers, or on what is in flight beside them."""

from __future__ import annotations

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import PROMPTS, ClientRequest, random_requests, send_all

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("model", ["demo", "demo-d2f"])
def test_a_server_says_what_the_local_engine_says(
    client: httpx.Client, engines: dict[str, LocalEngine], model: str
) -> None:
    for prompt in PROMPTS[:3]:
        request = ClientRequest(prompt, model=model)
        assert request.send(client) == request.decode_locally(engines[model])


@pytest.mark.parametrize(
    "count", [24, pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
def test_answers_do_not_depend_on_the_load(
    client: httpx.Client, engines: dict[str, LocalEngine], count: int
) -> None:
    requests = random_requests(seed=count, count=count)
    expected = [request.decode_locally(engines["demo"]) for request in requests]
    for concurrency in (1, 16):
        responses = send_all(client, requests, concurrency)
        differing = [
            request
            for request, response, wanted in zip(requests, responses, expected, strict=True)
            if response != wanted
        ]
        assert not differing, f"at concurrency {concurrency}"
