"""One client's queue holds up no other client's requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import CHAT, PROMPTS, SLOW, ClientRequest
from support.server_process import ServerProcess

pytestmark = pytest.mark.slow

HEAVY = ClientRequest(settings=SLOW, model="demo")
ROOM = 48
"""Requests that one client may have at the model demo; see conftest.py."""


def test_a_light_client_is_answered_while_the_queue_of_another_is_full(
    server: ServerProcess, keys: tuple[str, str], engines: dict[str, LocalEngine]
) -> None:
    light_key, heavy_key = ({"Authorization": f"Bearer {key}"} for key in keys)
    limits = httpx.Limits(max_connections=2 * ROOM)
    light_requests = [ClientRequest(prompt, {"max_new_tokens": 24}, "demo") for prompt in PROMPTS[:3]]

    def heavy(client: httpx.Client, number: int) -> int:
        headers = {**heavy_key, "X-Request-ID": f"heavy-{number}"}
        return client.post(CHAT, json=HEAVY.body(), headers=headers).status_code

    with (
        httpx.Client(base_url=server.url, timeout=240, limits=limits) as client,
        ThreadPoolExecutor(ROOM + 1) as pool,
    ):
        futures = [pool.submit(heavy, client, number) for number in range(ROOM + 1)]
        refused = next(future for future in wait(futures, return_when="FIRST_COMPLETED").done)
        assert refused.result() == 429
        for request in light_requests:
            response = client.post(CHAT, json=request.body(), headers=light_key)
            assert response.status_code == 200, response.text
            answer = response.json()["choices"][0]["message"]["content"]
            assert answer == request.decode_locally(engines["demo"]).text
        assert sum(future.done() for future in futures) < ROOM // 2
        for number in range(ROOM + 1):
            client.delete(f"/v1/requests/heavy-{number}", headers=heavy_key)
        assert {future.result() for future in futures} <= {200, 429, 499}
