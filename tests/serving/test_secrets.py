"""Who is let in, and what is written down about it."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import openai
import pytest

from support.client import PROMPT, Ask
from support.server_process import Served, wait_until

CHAT = "/v1/chat/completions"


def test_only_who_has_a_key_is_let_in(server: Served, keys: tuple[str, str]) -> None:
    body = Ask(settings={"max_new_tokens": 8}).body()
    with httpx.Client(base_url=server.url, timeout=60) as stranger:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": keys[0]}):
            response = stranger.post(CHAT, json=body, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert stranger.get("/v1/models", headers=headers).status_code == 401
            assert stranger.delete("/v1/requests/x", headers=headers).status_code == 401
        for key in keys:
            response = stranger.post(CHAT, json=body, headers={"Authorization": f"Bearer {key}"})
            assert response.status_code == 200
        for path in ("/health", "/version", "/docs", "/openapi.json", "/"):
            assert stranger.get(path).status_code == 200
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as ai,
        pytest.raises(openai.AuthenticationError),
    ):
        ai.models.list()


def test_health_says_how_each_model_is(client: httpx.Client) -> None:
    groups = client.get("/health").json()["groups"]
    assert groups == [{"model": model, "status": "HEALTHY", "replicas": 1} for model in ("demo", "demo-d2f")]


def test_neither_keys_nor_texts_are_logged(
    server: Served, client: httpx.Client, keys: tuple[str, str]
) -> None:
    mark, name = uuid.uuid4().hex, f"watched-{uuid.uuid4().hex}"
    ask = Ask(f"{mark} {PROMPT}", {"max_new_tokens": 32})
    answer = client.post(CHAT, json=ask.body(), headers={"X-Request-ID": name}).json()
    assert client.post(CHAT, json=ask.body(user=mark, max_tokens=10_000)).status_code == 400
    assert client.post(CHAT, json=ask.body(**{mark: 1})).status_code == 400
    assert client.post(CHAT, content=mark).status_code == 400
    for refused in (
        {"guided_regex": f"{mark}("},
        {"lopa": {"decoder": mark}},
        {"guided_json": {"type": mark}},
    ):
        assert client.post(CHAT, json=ask.body(**refused)).status_code == 400
    assert client.post(CHAT, json=ask.body(), headers={"Authorization": f"Bearer {mark}"}).status_code == 401

    def logged(text: str) -> list[Path]:
        files = [file for file in (server.ray_folder / "logs").rglob("*") if file.is_file()]
        return [file for file in files if text.encode() in file.read_bytes()]

    wait_until(lambda: len(logged(name)) > 1, 10, "the request's id in the logs of ingress and group")
    text = answer["choices"][0]["message"]["content"]
    assert len(text) > 20
    for secret in (*keys, mark, text):
        assert not logged(secret), f"{secret!r} is logged"
        assert secret not in server.printed
