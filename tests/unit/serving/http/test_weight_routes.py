"""The routes that change weights, pause and have memory given back: who may, what groups are asked, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.serving.http.server_models import ModelState
from lopa_ray.errors import CheckpointError, ClusterError, SettingsError
from support.fake_backend import AWAKE, MODEL, OTHER_MODEL, FakeBackend, error_of, serving

pytestmark = pytest.mark.medium

KEY, ADMIN = "a-client's-key", "an-admin-key"
POSTS = ("update_weights", "pause", "resume", "sleep", "wake_up", "reset_prefix_cache")
GETS = ("is_paused", "is_sleeping", "weight_version")
UPDATE = {"model": MODEL, "source": "/weights/7"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def client(backend: FakeBackend) -> Iterator[httpx.Client]:
    keys = {"api_keys": [KEY], "admin_keys": [ADMIN]}
    with (
        serving(backend, **keys) as server,
        httpx.Client(base_url=server.url, headers=bearer(ADMIN), timeout=30) as opened,
    ):
        yield opened


@pytest.mark.parametrize(
    ("path", "body", "arguments"),
    [
        ("update_weights", {"source": "/w", "version": 4}, {"source": "/w", "version": 4}),
        (
            "update_weights",
            {"source": "/w", "version": 2**40, "running": "keep"},
            {"source": "/w", "version": 2**40, "running": "keep"},
        ),
        ("pause", {}, {}),
        ("pause", {"running": "abort"}, {"running": "abort"}),
        ("resume", {}, {}),
        ("sleep", {"level": None}, {}),
        ("sleep", {"level": 2}, {"level": 2}),
        ("wake_up", {}, {}),
        ("reset_prefix_cache", {}, {}),
    ],
)
def test_every_group_is_told(
    client: httpx.Client, backend: FakeBackend, path: str, body: dict[str, Any], arguments: dict[str, Any]
) -> None:
    for model in (MODEL, OTHER_MODEL):
        answer = client.post(f"/admin/{path}", json={"model": model, **body})
        assert answer.status_code == 200, answer.text
        assert ModelState.model_validate(answer.json()).groups == backend.states
    assert backend.controls == [(model, path, arguments) for model in (MODEL, OTHER_MODEL)]


def test_a_single_model_needs_no_name_and_no_body() -> None:
    backend = FakeBackend(models=(MODEL,))
    with serving(backend, admin_keys=[ADMIN]) as server:
        for path in POSTS[1:]:
            assert httpx.post(f"{server.url}/admin/{path}", headers=bearer(ADMIN)).status_code == 200
        for path in GETS:
            assert httpx.get(f"{server.url}/admin/{path}", headers=bearer(ADMIN)).json()["model"] == MODEL
    assert [method for _, method, _ in backend.controls][: len(POSTS) - 1] == list(POSTS[1:])


def test_groups_that_differ(client: httpx.Client, backend: FakeBackend) -> None:
    """The answer says what all of them have reached; an update without a version brings them together."""
    backend.states = [
        AWAKE.model_copy(update={"weight_version": 3, "is_paused": True}),
        AWAKE.model_copy(update={"weight_version": 2}),
    ]
    for path in GETS:
        state = ModelState.model_validate(client.get(f"/admin/{path}", params={"model": MODEL}).json())
        assert (state.weight_version, state.is_paused, state.is_sleeping) == (2, False, False)
        assert state.groups == backend.states
    client.post("/admin/update_weights", json=UPDATE).raise_for_status()
    assert backend.controls[-1][1:] == (
        "update_weights",
        {"source": "/weights/7", "version": 4},
    )


@pytest.mark.parametrize("key", [None, KEY, "wrong"])
def test_other_keys_open_nothing(client: httpx.Client, backend: FakeBackend, key: str | None) -> None:
    headers = {} if key is None else bearer(key)
    url = client.base_url
    for method, path in [*(("POST", p) for p in POSTS), *(("GET", p) for p in GETS)]:
        answer = httpx.request(method, f"{url}/admin/{path}", headers=headers, json=UPDATE)
        assert error_of(answer, 401).code == "invalid_api_key"
    workers = httpx.get(f"{url}/admin/models/{MODEL}/workers", headers=headers)
    assert error_of(workers, 401) and not backend.controls
    assert client.get(f"/admin/models/{MODEL}/workers").status_code == 200
    assert error_of(client.get("/v1/models"), 401), "an admin key is no client's"


@pytest.mark.parametrize("keys", [{}, {"api_keys": [KEY]}])
def test_they_need_a_server_that_has_admin_keys(keys: dict[str, Any]) -> None:
    with serving(**keys) as server:
        for method, path in [*(("POST", p) for p in POSTS), *(("GET", p) for p in GETS)]:
            answer = httpx.request(method, f"{server.url}/admin/{path}", headers=bearer(KEY), json=UPDATE)
            said = error_of(answer, 403)
            assert said.code == "admin_needs_keys" and "--admin-keys" in said.message
        assert not server.backend.controls


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("update_weights", {}, "source"),
        *(
            ("update_weights", {"source": source}, "source")
            for source in (
                "org/name",
                "org/name@main",
                "weights",
                "./w",
                "~/w",
                "",
                "file:///w",
                "hf://org/name",
                7,
            )
        ),
        *(
            ("update_weights", {"source": "/w", "version": version}, "version")
            for version in (0, -1, "2", 1.5, True)
        ),
        ("update_weights", {"source": "/w", "running": "later"}, "running"),
        ("update_weights", {"source": "/w", "level": 1}, "level"),
        ("pause", {"running": None, "source": "/w"}, "source"),
        ("pause", {"running": "no"}, "running"),
        *(("sleep", {"level": level}, "level") for level in (0, 3, "1", True)),
        ("resume", {"level": 1}, "level"),
        ("wake_up", {"model": 3}, "model"),
    ],
)
def test_what_is_wrong_reaches_no_group(
    client: httpx.Client, backend: FakeBackend, path: str, body: dict[str, Any], param: str
) -> None:
    said = error_of(client.post(f"/admin/{path}", json={"model": MODEL, **body}), 400)
    assert said.param == param and not backend.controls


def test_the_name_of_a_hub_is_refused_with_words(client: httpx.Client) -> None:
    said = error_of(client.post("/admin/update_weights", json={**UPDATE, "source": "org/name"}), 400)
    assert (
        said.message == "source: got 'org/name'; allowed: the absolute path of a folder, no name on the Hub"
    )


def test_other_refusals(client: httpx.Client, backend: FakeBackend) -> None:
    for method, path in (("GET", "is_paused"), ("POST", "pause")):
        unknown = client.request(method, f"/admin/{path}", params={"model": "nothing"})
        assert error_of(unknown, 404).code == "model_not_found"
        assert error_of(client.request(method, f"/admin/{path}"), 400).param == "model"
    assert error_of(client.post("/admin/pause", content=b"[]"), 400).code == "invalid_json"
    assert client.get("/admin/update_weights").status_code == 405
    for error, status, param in (
        (CheckpointError("/w: tensor lm_head.weight is missing"), 400, "source"),
        (SettingsError("version: got 3, and the weights have version 3", setting="version"), 400, "version"),
        (ClusterError("these groups of model 'fake' failed: 2 of 2 (gone); ask again"), 503, None),
    ):
        backend.status_error = error
        answer = client.post("/admin/update_weights", json={**UPDATE, "version": 3})
        said = error_of(answer, status)
        assert (said.message, said.param) == (str(error), param)
        assert ("retry-after" in answer.headers) == (status == 503)


def test_the_document_has_them(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for method, names in (("post", POSTS), ("get", GETS)):
        for name in names:
            operation = paths[f"/admin/{name}"][method]
            assert operation["security"] and {"400", "401", "404", "503"} <= operation["responses"].keys()
