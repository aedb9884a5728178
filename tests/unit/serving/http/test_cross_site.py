"""Web pages of other sites: what a browser sends for them is refused where no API key is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
import pytest

from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from support.fake_backend import CHAT, MODEL, FakeBackend, Server, error_of, serving

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
EVIL = "https://evil.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST"}


def ask_at(server: str, headers: Mapping[str, str], settings: HttpSettings) -> httpx.Response:
    """The response of an application that is listened for on the address `server`."""

    async def ask() -> httpx.Response:
        app = create_app(FakeBackend, settings)

        async def listening(scope, receive, send) -> None:
            await app({**scope, "server": (server, 8000)}, receive, send)

        transport = httpx.ASGITransport(listening)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return await client.post(CHAT, json=ASK, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_a_page_of_another_site_cannot_ask(
    server: Server, client: httpx.Client, headers: dict[str, str]
) -> None:
    response = client.post(CHAT, json=ASK, headers=headers)
    assert error_of(response, 403).code == "origin_not_allowed"
    assert "access-control-allow-origin" not in response.headers
    assert server.backend.requests == []


def test_a_page_of_another_site_gets_no_preflight(client: httpx.Client) -> None:
    assert client.options(CHAT, headers={"Origin": EVIL, **PREFLIGHT}).status_code == 403


def test_the_servers_own_page_can_ask(server: Server, client: httpx.Client) -> None:
    for headers in ({"Origin": server.url}, {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}):
        assert client.post(CHAT, json=ASK, headers=headers).status_code == 200
    assert client.get("/v1/models", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_addresses_that_are_typed_and_links_show_pages(client: httpx.Client) -> None:
    for site in ("none", "cross-site"):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
        assert client.get("/", headers=headers).status_code == 200
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).is_error


@pytest.mark.parametrize("host", ["evil.example:8000", "localhost.evil.example", "[evil]", ""])
def test_another_sites_name_for_this_machine_is_refused(client: httpx.Client, host: str) -> None:
    # To the browser the rebound name is the page's own origin.
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert error_of(client.post(CHAT, json=ASK, headers=headers), 403).code == "host_not_allowed"


@pytest.mark.parametrize("host", ["LOCALHOST:8000", "lopa.localhost", "localhost.", "[::1]:8000"])
def test_names_of_this_machine_are_allowed(client: httpx.Client, host: str) -> None:
    assert client.post(CHAT, json=ASK, headers={"Host": host}).status_code == 200


def test_only_connections_to_the_loopback_need_its_names() -> None:
    named = {"Host": "lopa.example:8000"}
    for address, status in (("127.0.0.1", 403), ("::1", 403), ("10.0.0.7", 200)):
        assert ask_at(address, named, HttpSettings()).status_code == status
    # Another site's page is refused there too.
    assert error_of(ask_at("10.0.0.7", {**named, "Origin": EVIL}, HttpSettings()), 403)


@pytest.mark.medium
def test_hosts_that_are_allowed() -> None:
    settings = HttpSettings(allowed_hosts=["LOPA.example"])
    for address in ("127.0.0.1", "10.0.0.7"):
        for host, status in (("lopa.example", 200), ("lopa.example:8443", 200), ("evil.example", 403)):
            assert ask_at(address, {"Host": host}, settings).status_code == status
    proxied = {"Host": "lopa.example", "Origin": "https://lopa.example", "Sec-Fetch-Site": "same-origin"}
    assert ask_at("127.0.0.1", proxied, settings).status_code == 200
    assert ask_at("127.0.0.1", {"Host": "any.example"}, HttpSettings(allowed_hosts=["*"])).status_code == 200


@pytest.mark.medium
def test_origins_that_are_allowed() -> None:
    origin = "https://a.example"
    with serving(allowed_origins=[origin]) as server, httpx.Client(base_url=server.url) as client:
        preflight = client.options(CHAT, headers={"Origin": origin, **PREFLIGHT})
        assert preflight.headers["access-control-allow-origin"] == origin
        paths = client.get("/openapi.json").json()["paths"]
        methods = {method.upper() for operations in paths.values() for method in operations}
        assert "DELETE" in methods
        assert methods <= set(preflight.headers["access-control-allow-methods"].split(", "))
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert client.post(CHAT, json=ASK, headers=headers).status_code == 200
        server.backend.rejection = KeyError()
        # A browser shows an error only to pages that are allowed.
        response = client.post(CHAT, json=ASK, headers=headers)
        assert error_of(response, 500)
        assert response.headers["access-control-allow-origin"] == origin
        stranger = client.get("/version", headers={"Origin": "https://b.example"})
        assert error_of(stranger, 403)
        assert "access-control-allow-origin" not in stranger.headers
    assert ask_at("127.0.0.1", {"Origin": EVIL}, HttpSettings(allowed_origins=["*"])).status_code == 200


def test_with_api_keys_no_page_can_ask_without_one() -> None:
    with serving(api_keys=["right-key"]) as server, httpx.Client(base_url=server.url) as client:
        headers = {"Origin": EVIL, "Host": "lopa.example", "Sec-Fetch-Site": "cross-site"}
        assert error_of(client.post(CHAT, json=ASK, headers=headers), 401)
        headers["Authorization"] = "Bearer right-key"
        assert client.post(CHAT, json=ASK, headers=headers).status_code == 200


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Content-Type": "Application/JSON; charset=utf-8", "Sec-Fetch-Site": "same-origin"}, 200),
        (FORM, 200),
        ({**FORM, "Sec-Fetch-Site": "same-origin"}, 415),
        ({**FORM, "Origin": "{server}"}, 415),
        ({"Content-Type": "text/plain;charset=UTF-8"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
    ],
)
def test_types_of_bodies(server: Server, client: httpx.Client, headers: dict[str, str], status: int) -> None:
    headers = {name: value.format(server=server.url) for name, value in headers.items()}
    body = b'{"model": "%s", "prompt": "hi"}' % MODEL.encode()
    for path in ("/v1/completions", "/tokenize"):
        response = client.post(path, content=body, headers=headers)
        assert response.status_code == status, response.text
        if status == 415:
            assert error_of(response, 415).code == "unsupported_media_type"
