"""Everything around the answers: routes, keys, cancellation and clients that go away."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.openai.model_list import ModelCard, ModelList
from cluster.serving.http import playground_routes
from cluster.serving.http.api_keys import load_api_keys
from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.server_models import Health
from lopa_ray import __version__
from lopa_ray.errors import ClusterError, LopaError, SettingsError
from support.fake_backend import CHAT, MODEL, OTHER_MODEL, FakeBackend, Server, error_of, serving
from support.waiting import wait_until

OPEN = ("/health", "/metrics", "/ping", "/version")
"""The paths in the document that need no key."""

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def test_models(client: httpx.Client) -> None:
    models = ModelList.model_validate(client.get("/v1/models").json())
    assert [card.id for card in models.data] == [MODEL, OTHER_MODEL]
    for name in (OTHER_MODEL, OTHER_MODEL.replace("/", "%2F")):
        assert ModelCard.model_validate(client.get(f"/v1/models/{name}").json()) == models.data[1]
    assert error_of(client.get("/v1/models/nothing"), 404).code == "model_not_found"


def test_health_and_version(server: Server, client: httpx.Client) -> None:
    health = Health.model_validate(client.get("/health").json())
    assert (health.status, health.groups[0].model) == ("ok", MODEL)
    assert client.get("/version").json() == {"version": __version__}
    server.backend.status_error = ClusterError("no worker is left")
    assert error_of(client.get("/health"), 503).message == "no worker is left"
    server.backend.status_error = KeyError("secret")
    assert "secret" not in error_of(client.get("/health"), 503).message


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping(server: Server, client: httpx.Client, method: str) -> None:
    answer = client.request(method, "/ping")
    assert (answer.status_code, answer.content) == (200, b"")
    server.backend.status_error = ClusterError("no worker is left")
    assert error_of(client.request(method, "/ping"), 503).message == "no worker is left"


def test_unknown_routes(client: httpx.Client) -> None:
    assert error_of(client.get("/v1/nothing"), 404).code == "not_found"
    assert error_of(client.get(CHAT), 405).code == "method_not_allowed"


def test_pages_need_no_other_host_and_stand_in_no_other_page(client: httpx.Client) -> None:
    for page in ("/docs", "/"):
        response = client.get(page)
        assert response.headers["content-type"].startswith("text/html")
        policy = response.headers["content-security-policy"]
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy.split("; ")
        assert "https://" not in response.text
        assert "import(" not in response.text


def test_the_playgrounds_files_are_served_and_no_others(client: httpx.Client) -> None:
    page = client.get("/")
    named = re.findall(r'(?:src|href)="(?!data:|https:)([^"]+)"', page.text)
    assert '="https:' not in page.text, "its help too is of this server"
    seen: list[str] = []
    while named:
        path = named.pop()
        response = client.get(path)
        assert response.status_code == 200, path
        if path.startswith("playground/") and path not in seen:
            seen.append(path)
            assert response.headers["x-content-type-options"] == "nosniff"
            kind = {"js": "text/javascript", "css": "text/css"}[path.rpartition(".")[2]]
            assert response.headers["content-type"].startswith(kind)
            named += [f"playground/{name}" for name in re.findall(r'from "\./([^"]+)"', response.text)]
            assert "https://" not in response.text and "import(" not in response.text
    folder = Path(playground_routes.__file__).parent / "playground"
    assert {*seen, "playground/index.html", "playground/examples.json"} == {
        f"playground/{file.name}" for file in folder.iterdir()
    }
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy and "unsafe" not in policy
    for path in ("nothing.js", "..%2Fdocs.html", "%2e%2e/docs.html"):
        assert client.get(f"/playground/{path}").status_code == 404


@pytest.mark.medium
def test_the_document_describes_requests_and_errors(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    chat = document["paths"][CHAT]["post"]
    named = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert named == "#/components/schemas/ChatRequest"
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert schemas["ChatRequest"]["properties"]["functions"]["enum"] == [None, []]
    lopa = schemas["LopaOptions"]["properties"]
    assert {"num_branches", "window_attention", "steps", "deadline"} <= lopa.keys()
    assert not {"seed", "max_new_tokens", "top_logprobs"} & lopa.keys()
    assert {"200", "400", "404", "413", "429", "499", "503", "504"} <= chat["responses"].keys()
    assert "security" not in chat


@pytest.mark.medium
def test_keys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with (
        serving(api_keys=["right-key", "other-key"]) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        paths = client.get("/openapi.json").json()["paths"]
        closed = [(method, path) for path in paths.keys() - OPEN for method in paths[path]]
        assert ("post", CHAT) in closed
        for method, path in closed:
            for header in (
                None,
                "Bearer",
                "Bearer wrong",
                "Basic right-key",
                "Bearer right-key2",
                b"Bearer \xff",
            ):
                headers = {} if header is None else {"Authorization": header}
                response = client.request(method, path, headers=headers)
                assert error_of(response, 401).code == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        for header in ("Bearer right-key", "bearer other-key"):
            assert client.get("/v1/models", headers={"Authorization": header}).status_code == 200
        for path in (
            *OPEN,
            "/",
            "/docs",
            "/openapi.json",
            "/playground/main.js",
            "/playground/examples.json",
        ):
            assert client.get(path).status_code == 200
        said = paths[CHAT]["post"]
        assert said["security"] and "401" in said["responses"]
    written = "".join(record.getMessage() for record in caplog.records)
    assert "right-key" not in written and "other-key" not in written


def test_where_keys_come_from(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one  # Mia's\n\n# nobody's\ntwo\n")
    assert load_api_keys(None, {}) == []
    assert load_api_keys(str(file), {"LOPA_API_KEYS": "three, two,"}) == ["one", "two", "three"]


def test_settings_do_not_tell_keys() -> None:
    settings = HttpSettings(api_keys=["right-key"])
    assert "right-key" not in f"{settings!r} {settings}"
    for bad in ("right-key", ["right key"], [12345], [""]):
        with pytest.raises(SettingsError) as error:
            HttpSettings(api_keys=bad)
        assert "right" not in str(error.value) and "12345" not in str(error.value)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling(server: Server, client: httpx.Client, stream: bool) -> None:
    backend = server.backend
    backend.hold = True
    answers: list[httpx.Response] = []
    ask = {**ASK, "stream": stream}
    thread = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{server.url}{CHAT}", json=ask, headers={"X-Request-ID": "r.1"}, timeout=30)
        )
    )
    thread.start()
    wait_until(lambda: ("address 127.0.0.1", "r.1") in backend.running)
    # An id belongs to one request at a time.
    twin = client.post(CHAT, json=ask, headers={"X-Request-ID": "r.1"})
    assert error_of(twin, 409).code == "request_id_in_use"
    response = client.delete("/v1/requests/r.1")
    assert response.json() == {"id": "r.1", "object": "request", "cancelled": True}
    thread.join(20)
    if stream:
        *_, last, done, _ = answers[0].text.split("\n\n")
        assert answers[0].status_code == 200 and done == "data: [DONE]"
        assert '"code":"request_cancelled"' in last
    else:
        assert error_of(answers[0], 499).code == "request_cancelled"
    assert error_of(client.delete("/v1/requests/r.1"), 404).code == "request_not_found"
    backend.hold = False
    backend.cancelled.clear()
    assert client.post(CHAT, json=ask, headers={"X-Request-ID": "r.1"}).status_code == 200


@pytest.mark.medium
def test_an_id_belongs_to_a_key() -> None:
    """Another key can neither cancel a request by its id, nor keep its owner from using the id."""
    backend = FakeBackend(hold=True)
    answers: dict[str, httpx.Response] = {}

    def headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}", "X-Request-ID": "r.1"}

    with (
        serving(backend, api_keys=["a", "b"]) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):

        def ask(key: str) -> None:
            answers[key] = httpx.post(f"{server.url}{CHAT}", json=ASK, headers=headers(key), timeout=30)

        first = threading.Thread(target=ask, args="a")
        first.start()
        wait_until(lambda: len(backend.running) == 1)
        assert error_of(client.delete("/v1/requests/r.1", headers=headers("b")), 404)
        second = threading.Thread(target=ask, args="b")
        second.start()
        wait_until(lambda: len(backend.running) == 2)
        assert error_of(client.post(CHAT, json=ASK, headers=headers("b")), 409)
        assert client.delete("/v1/requests/r.1", headers=headers("b")).status_code == 200
        second.join(20)
        assert error_of(answers["b"], 499) and "a" not in answers
        backend.hold = False
        first.join(20)
        assert answers["a"].status_code == 200


def test_a_proxy_may_send_the_id() -> None:
    app = create_app(FakeBackend, HttpSettings(), send_id=False)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(CHAT, json=ASK, headers={"X-Request-ID": "of-a-proxy"})

    response = asyncio.run(ask())
    assert "x-request-id" not in response.headers
    assert response.json()["id"] == "chatcmpl-of-a-proxy"


@pytest.mark.parametrize("last", ["whole", "[DONE]", "error"])
def test_the_id_is_free_once_the_client_hears_of_the_end(last: str) -> None:
    """Straight over ASGI, where nothing runs between what is sent and who reads it."""
    backend = FakeBackend(failure=LopaError("x") if last == "error" else None)
    app = create_app(lambda: backend, HttpSettings())
    ask = {**ASK, "stream": last != "whole"}
    headers = {"X-Request-ID": "mine"}
    again: list[int] = []

    async def run() -> None:
        def client(app: Any) -> httpx.AsyncClient:
            return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def watched_send(message: Any) -> None:
                body = message.get("body", b"")
                if body if last == "whole" else last.encode() in body:
                    async with client(app) as another:
                        again.append((await another.post(CHAT, json=ask, headers=headers)).status_code)
                await send(message)

            await app(scope, receive, watched_send)

        async with client(watched) as first:
            await first.post(CHAT, json=ask, headers=headers)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert again == [200]


@pytest.mark.medium
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ["cancelled", "gone while sending", "gone while waiting"])
def test_whatever_ends_the_task_ends_the_job(stream: bool, ending: str) -> None:
    """Straight over ASGI: Ray Serve cancels the task, and a client may stop reading and then vanish."""
    backend = FakeBackend(hold=ending != "gone while sending")
    app = create_app(lambda: backend, HttpSettings())
    body = json.dumps({**ASK, "stream": stream}).encode()

    async def run() -> None:
        began, gone, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                began.set()
                await gone.wait()
                return {"type": "http.disconnect"}
            return message

        async def send(_: Any) -> None:
            if ending == "gone while sending":
                await never.wait()

        scope = {"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "headers": []}
        task = asyncio.create_task(app({**scope, "query_string": b"", "root_path": ""}, receive, send))
        await began.wait()
        while not backend.running and not backend.closed:
            await asyncio.sleep(0)
        if ending == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            gone.set()
            await task
        assert len(backend.closed) == 1 and not backend.running

    asyncio.run(asyncio.wait_for(run(), 20))
