"""One server for both clients, which reach it by a base URL and an API key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.server_process import ServerProcess, run_server

DEMO = {
    "id": "demo",
    "model": {"prefix_cache": "exact"},
    "group": {"num_workers": 2, "num_cpus": 0.25},
}
KEY = "key-of-the-clients-77b0"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves demo, to those who have the key. At the end it has to stop as it should."""
    with run_server(tmp_path_factory.mktemp("served"), [DEMO], environment={"LOPA_API_KEYS": KEY}) as running:
        running.api_key = KEY
        yield running
        running.interrupt()
