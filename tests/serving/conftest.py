"""One server with two models for all tests of this folder, and the same models in this process."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from asking import engine_of
from served import Served, serving

from lopa_ray.local import LocalEngine

DEMO = {"id": "demo", "group": {"num_workers": 2, "num_cpus": 0.25}}
ONE_SLOT = {
    "id": "demo-d2f",
    "model": {"slots": 1},
    "group": {"num_workers": 1, "num_cpus": 0.25},
    "decode": {"decoder": "d2f"},
}
"""One request decodes, one waits for its slot, and two wait in front of the group; see QUEUE."""

QUEUE = {"name": "demo-d2f", "max_ongoing_requests": 2, "max_queued_requests": 2}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves demo and demo-d2f. At the end it has to stop as it should."""
    with serving(tmp_path_factory.mktemp("served"), [DEMO, ONE_SLOT], deployments=[QUEUE]) as running:
        yield running
        running.stop()


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client(limits=httpx.Limits(max_connections=64)) as made:
        yield made


@pytest.fixture(scope="session")
def engines() -> dict[str, LocalEngine]:
    """By the names that the server has for them."""
    return {str(entry["id"]): engine_of(entry) for entry in (DEMO, ONE_SLOT)}
