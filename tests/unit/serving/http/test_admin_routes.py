"""The admin endpoint: who may, what is answered, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.serving.http.server_models import ModelWorkers
from lopa_ray.errors import ClusterError
from support.fake_backend import MAX_WORKERS, MODEL, OTHER_MODEL, Server, error_of, serving

pytestmark = pytest.mark.medium

KEY = "an-admin-key"
HTTP_SETTINGS = {"api_keys": [KEY]}
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
PATH = f"/admin/models/{MODEL}/workers"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=AUTHORIZED, timeout=30) as opened:
        yield opened


def test_looking_and_changing(server: Server, client: httpx.Client) -> None:
    before = ModelWorkers.model_validate(client.get(PATH).json())
    assert [(group.workers, group.coming, group.wanted) for group in before.groups] == [(2, 0, 2)] * 2
    after = ModelWorkers.model_validate(client.post(PATH, json={"num_workers": 5}).json())
    assert (after.model, after.groups[0].coming, after.groups[1].problem) == (MODEL, 3, "no place")
    assert server.backend.num_workers == {MODEL: 5}
    assert client.get(PATH).json() == after.model_dump()


@pytest.mark.parametrize("name", [OTHER_MODEL, OTHER_MODEL.replace("/", "%2F")])
def test_names_may_have_slashes(server: Server, client: httpx.Client, name: str) -> None:
    assert client.post(f"/admin/models/{name}/workers", json={"num_workers": 3}).status_code == 200
    assert server.backend.num_workers == {OTHER_MODEL: 3}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_it_needs_a_server_that_has_keys(method: str) -> None:
    with serving() as open_server:
        for headers in ({}, AUTHORIZED):
            url = f"{open_server.url}{PATH}"
            refused = httpx.request(method, url, headers=headers, json={"num_workers": 3})
            said = error_of(refused, 403)
            assert said.code == "admin_needs_keys" and "--api-keys" in said.message
        assert open_server.backend.num_workers == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_parameter"),
        ({"num_workers": 0}, "invalid_value"),
        ({"num_workers": "3"}, "invalid_value"),
        ({"num_workers": True}, "invalid_value"),
        ({"num_workers": 3, "workers": 3}, "unknown_parameter"),
        ({"num_workers": MAX_WORKERS + 1}, "invalid_value"),
        ([], "invalid_json"),
    ],
)
def test_bodies_that_are_refused(server: Server, client: httpx.Client, body: Any, code: str) -> None:
    assert error_of(client.post(PATH, json=body), 400).code == code
    assert server.backend.num_workers == {}


def test_other_refusals(server: Server, client: httpx.Client) -> None:
    for method in ("GET", "POST"):
        unknown = client.request(method, "/admin/models/nothing/workers", json={"num_workers": 1})
        assert error_of(unknown, 404).code == "model_not_found"
    server.backend.status_error = ClusterError("the group is gone")
    assert error_of(client.get(PATH), 503).message == "the group is gone"


def test_the_document_says_who_may(client: httpx.Client) -> None:
    closed = client.get("/openapi.json").json()["paths"]["/admin/models/{model}/workers"]
    assert closed["post"]["security"] and {"401", "400", "404", "503"} <= closed["post"]["responses"].keys()
    with serving() as open_server:
        document = httpx.get(f"{open_server.url}/openapi.json").json()
    operation = document["paths"]["/admin/models/{model}/workers"]["post"]
    assert "security" not in operation and "403" in operation["responses"]
