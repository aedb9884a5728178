"""Methods, paths and headers of requests, whatever their body: HEAD, slashes, and what is not valid."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from support.fake_backend import CHAT, HI, MODEL, OTHER_MODEL, FakeBackend, error_of, serving

pytestmark = pytest.mark.medium

ASK = {"model": MODEL, "messages": HI}


def test_a_refused_method_names_all_that_the_path_has(client: httpx.Client) -> None:
    for path, methods in (
        ("/ping", {"GET", "POST", "HEAD"}),
        ("/v1/models", {"GET", "HEAD"}),
        (CHAT, {"POST"}),
    ):
        for method in ("PUT", "OPTIONS", *({"HEAD"} - methods)):
            response = client.request(method, path)
            assert response.status_code == 405 and set(response.headers["allow"].split(", ")) == methods


@pytest.mark.parametrize("keys", [[], ["right-key"]])
def test_head_is_get_without_the_body(keys: list[str]) -> None:
    """Straight over ASGI, where no HTTP server leaves a body out."""
    app = create_app(FakeBackend, HttpSettings(api_keys=keys))

    async def compare() -> set[int]:
        statuses = set()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
            names = [path.replace("{model}", OTHER_MODEL) for path in paths]
            for path in (
                *names,
                "/",
                "/docs",
                "/openapi.json",
                "/playground/main.js",
                "/nothing",
                "/v1/models/x",
            ):
                for headers in ({}, {"Authorization": "Bearer right-key"}, {"Origin": "https://a.example"}):
                    got, head = [
                        await client.request(method, path, headers=headers) for method in ("GET", "HEAD")
                    ]
                    assert (head.content, head.status_code) == (b"", got.status_code), path
                    assert {**head.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}
                    statuses.add(head.status_code)
        return statuses

    assert asyncio.run(compare()) == {200, 403, 404, 405} | ({401} if keys else set())


@pytest.mark.parametrize("root", ["", "/llm"])
def test_slashes_count_once(root: str) -> None:
    backend = FakeBackend()
    app = create_app(lambda: backend, HttpSettings(api_keys=["right-key"]))
    key = {"Authorization": "Bearer right-key"}

    async def check() -> None:
        async def ask(method: str, path: str, **options: Any) -> httpx.Response:
            async def server(scope: Any, receive: Any, send: Any) -> None:
                # Clients resolve paths before they send them.
                await app({**scope, "root_path": root, "path": f"{root}{path}"}, receive, send)

            transport = httpx.ASGITransport(server)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, "/", **options)

        for path in ("/v1/models/", "//v1//models", "/v1/models//"):
            assert (await ask("GET", path, headers=key)).json()["object"] == "list"
            assert error_of(await ask("GET", path), 401)
        for path in ("//v1//chat/completions", "/v1/chat/completions/"):
            assert (await ask("POST", path, json=ASK, headers=key)).status_code == 200
            assert error_of(await ask("POST", path, json=ASK), 401)
        for path in ("/health/../v1/models", "/./v1/models", "/health/..//v1/models"):
            assert error_of(await ask("GET", path), 404)
        assert error_of(await ask("GET", "/v1/models/../../health"), 401)
        for path in ("/", "//", "/docs/", "//playground//main.js"):
            assert (await ask("GET", path)).status_code == 200

    asyncio.run(check())
    assert len(backend.requests) == 2


MALFORMED = {
    "Host": ["[::1", "a:b:c", "localhost:99999999", "\xff", "http://[::1/", "@", ""],
    "Origin": ["http://[::1", "http://[", "\xff", "null", "http://a:b", "//[", ""],
    "Content-Type": ["application/json; charset=\xff", "application/json; charset=nothing", ";", "\xff"],
    "Content-Encoding": ["\xff", "gzip", "gzip, gzip"],
    "Accept": ["\xff", "application/openmetrics-text; version=x; escaping=\xff", ";;q=", "*/*;q=x"],
    "Authorization": ["\xff", "Bearer", "Bearer \xff", "Basic ="],
    "X-Request-ID": ["\xff", ""],
    "X-TypeSafe-SDK": ["\xff"],
    "Access-Control-Request-Method": ["\xff"],
    "Sec-Fetch-Site": ["\xff"],
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"api_keys": ["right-key"]},
        {"allowed_origins": ["https://a.example"], "allowed_hosts": ["a.example"]},
    ],
)
def test_headers_that_are_not_valid_are_no_fault_of_the_server(settings: dict[str, Any]) -> None:
    with serving(**settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        for name, values in MALFORMED.items():
            for value in values:
                for method, path in (
                    ("POST", CHAT),
                    ("POST", "/v1/systemone"),
                    ("GET", "/metrics"),
                    ("GET", "/nothing"),
                    ("OPTIONS", CHAT),
                ):
                    headers = {"Authorization": "Bearer right-key", name: value.encode("latin-1")}
                    response = client.request(method, path, headers=headers, content=json.dumps(ASK))
                    assert response.status_code < 500, (name, value, path)


@pytest.mark.parametrize(("size", "status"), [(15_000, 200), (17_000, 431)])
def test_path_and_headers_are_bounded(size: int, status: int) -> None:
    """Straight over ASGI, since HTTP servers have bounds of their own."""
    app = create_app(FakeBackend, HttpSettings())

    async def ask(path: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    many = {f"X-{number}": 96 * "a" for number in range(size // 104)}
    for path, headers in (
        (f"/version?{size * 'a'}", {}),
        ("/version", {"X-Long": size * "a"}),
        ("/version", many),
    ):
        response = asyncio.run(ask(path, headers))
        assert response.status_code == status
        if status == 431:
            assert error_of(response, 431).code == "headers_too_large"
