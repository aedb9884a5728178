"""Who is let in, and what is written down about it."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import openai
import pytest

from support.client_request import CHAT, PROMPT, ClientRequest
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.medium


def test_only_who_has_a_key_is_let_in(server: ServerProcess, keys: tuple[str, str]) -> None:
    body = ClientRequest(settings={"max_new_tokens": 8}).body()
    with httpx.Client(base_url=server.url, timeout=60) as anonymous:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": keys[0]}):
            response = anonymous.post(CHAT, json=body, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert anonymous.get("/v1/models", headers=headers).status_code == 401
            assert anonymous.delete("/v1/requests/x", headers=headers).status_code == 401
            assert anonymous.post("/tokenize", json={}, headers=headers).status_code == 401
        for key in keys:
            response = anonymous.post(CHAT, json=body, headers={"Authorization": f"Bearer {key}"})
            assert response.status_code == 200
        for path in ("/health", "/ping", "/metrics", "/version", "/docs", "/openapi.json", "/"):
            assert anonymous.get(path).status_code == 200
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as ai,
        pytest.raises(openai.AuthenticationError),
    ):
        ai.models.list()


def test_health_says_how_each_model_is(client: httpx.Client) -> None:
    groups = client.get("/health").json()["groups"]
    assert groups == [{"model": model, "status": "HEALTHY", "replicas": 1} for model in ("demo", "demo-d2f")]


def test_neither_keys_nor_texts_are_logged(
    server: ServerProcess, client: httpx.Client, keys: tuple[str, str]
) -> None:
    marker, name = uuid.uuid4().hex, f"watched-{uuid.uuid4().hex}"
    request = ClientRequest(f"{marker} {PROMPT}", {"max_new_tokens": 32})
    answer = client.post(CHAT, json=request.body(), headers={"X-Request-ID": name}).json()
    assert client.post(CHAT, json=request.body(user=marker, max_tokens=10_000)).status_code == 400
    assert client.post(CHAT, json=request.body(**{marker: 1})).status_code == 400
    assert client.post(CHAT, content=marker).status_code == 400
    for refused in (
        {"guided_regex": f"{marker}("},
        {"lopa": {"decoder": marker}},
        {"guided_json": {"type": marker}},
    ):
        assert client.post(CHAT, json=request.body(**refused)).status_code == 400
    assert (
        client.post(CHAT, json=request.body(), headers={"Authorization": f"Bearer {marker}"}).status_code
        == 401
    )

    def logged(text: str) -> list[Path]:
        files = [file for file in (server.ray_folder / "logs").rglob("*") if file.is_file()]
        return [file for file in files if text.encode() in file.read_bytes()]

    wait_until(lambda: len(logged(name)) > 1, "the request's id in the logs of ingress and group")
    text = answer["choices"][0]["message"]["content"]
    assert len(text) > 20
    for secret in (*keys, marker, text):
        assert not logged(secret), f"{secret!r} is logged"
        assert secret not in server.output
