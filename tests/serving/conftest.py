"""One server with two models for all tests of this folder, and the same models in this process."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client_request import local_engine
from support.server_process import ServerProcess, run_server

ROOM = 48
"""Requests that one client may have at the model demo."""

DEMO = {"id": "demo", "group": {"num_workers": 2, "num_cpus": 0.25, "max_requests_per_client": ROOM}}
ONE_SLOT = {
    "id": "demo-d2f",
    "model": {"max_num_seqs": 1},
    "group": {"num_workers": 1, "num_cpus": 0.25},
    "decode": {"decoder": "d2f"},
}
"""One request decodes, one waits for its slot, and two wait in front of the group; see QUEUE."""

KEYS = ("key-in-a-file-9e1f", "key-in-the-environment-4b7c")

TWO_INGRESSES = {"name": "ingress", "num_replicas": 2}
"""As on machines with more cores."""

QUEUE = {"name": "demo-d2f", "max_ongoing_requests": 2, "max_queued_requests": 2}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves demo and demo-d2f. At the end it has to stop as it should."""
    folder = tmp_path_factory.mktemp("served")
    keys = folder / "keys"
    keys.write_text(KEYS[0])
    with run_server(
        folder,
        [DEMO, ONE_SLOT],
        deployments=[QUEUE, TWO_INGRESSES],
        options=["--api-keys", str(keys)],
        environment={"LOPA_API_KEYS": KEYS[1]},
    ) as running:
        running.api_key = KEYS[0]
        yield running
        running.interrupt()


@pytest.fixture(scope="session")
def keys() -> tuple[str, str]:
    """All that the server accepts."""
    return KEYS


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the server that a file uses."""
    with server.client(limits=httpx.Limits(max_connections=64)) as opened:
        yield opened


@pytest.fixture(scope="session")
def engines() -> dict[str, LocalEngine]:
    """By the names that the server has for them."""
    return {str(entry["id"]): local_engine(entry) for entry in (DEMO, ONE_SLOT)}
