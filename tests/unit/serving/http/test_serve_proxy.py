"""What Ray Serve's proxy does before the application: bounded headers, and only valid ids of requests."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import Any

import httpx
import pytest
from starlette.middleware import Middleware
from uvicorn.config import HTTP_PROTOCOLS

from cluster.serving.http.lost_ingress import LostIngressMiddleware
from cluster.serving.http.serve_proxy import CALLBACK, RequestFilter, set_up
from support.fake_backend import serving

TOO_MUCH = 2**15
"""Bytes of headers: more than what is taken."""


@pytest.fixture
def proxy_setup(monkeypatch: pytest.MonkeyPatch) -> list[Middleware]:
    """As in a proxy of Ray Serve."""
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", HTTP_PROTOCOLS["auto"])
    return set_up()


def test_a_lost_ingress_is_seen_around_all_else(proxy_setup: list[Middleware]) -> None:
    assert [middleware.cls for middleware in proxy_setup] == [LostIngressMiddleware, RequestFilter]


def answer_to(url: str, unfinished: bytes) -> bytes:
    """The first line of the response to a request that does not end."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(unfinished)
        return connection.recv(1000).partition(b"\r\n")[0]


def test_ray_finds_it_under_its_name() -> None:
    module, _, function = CALLBACK.partition(":")
    assert getattr(import_module(module), function) is set_up


@pytest.mark.medium
@pytest.mark.usefixtures("proxy_setup")
@pytest.mark.parametrize(
    "unfinished",
    [
        b"GET /" + TOO_MUCH * b"a",
        b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Long: " + TOO_MUCH * b"a",
        b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + TOO_MUCH // 8 * b"X-1: a\r\n",
    ],
    ids=["path", "one header", "many headers"],
)
def test_headers_are_bounded(unfinished: bytes) -> None:
    with serving() as server:
        assert answer_to(server.url, unfinished) == b"HTTP/1.1 400 Bad Request"
        assert httpx.get(f"{server.url}/version").status_code == 200


@pytest.mark.parametrize(
    ("ids", "used"),
    [
        (["mine-1"], "mine-1"),
        (["not valid"], None),
        (["mine", "another"], None),
        ([], None),
    ],
)
def test_an_id_that_is_not_valid_is_not_repeated(ids: list[str], used: str | None) -> None:
    """Behind it Serve makes an id where there is none, and repeats one that is there."""
    from ray.serve._private.http_util import RequestIdMiddleware

    inside: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        inside.extend(value.decode() for name, value in scope["headers"] if name == b"x-request-id")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = RequestFilter(RequestIdMiddleware(application))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/", headers=[("X-Request-ID", given) for given in ids])

    (said,) = asyncio.run(ask()).headers.get_list("x-request-id")
    assert inside == [said]
    assert said == used if used is not None else said not in ids


def test_serve_gets_neither_its_own_headers_nor_doubled_slashes() -> None:
    inside: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        inside.append((scope["path"], [name for name, _ in scope["headers"]]))

    scope = {
        "type": "http",
        "path": "//llm//v1/models/",
        "headers": [
            (b"host", b"a"),
            (b"serve_multiplexed_model_id", b"\xff"),
            (b"serve-multiplexed-model-id", b"a"),
            (b"x-session-id", b"\xff"),
            (b"x-request-timeout-seconds", b"0.001"),
            (b"x-request-disconnect-disabled", b"?1"),
        ],
    }
    asyncio.run(RequestFilter(application)(scope, None, None))
    assert inside == [("/llm/v1/models/", [b"host"])]
