"""A server of decisions over a fake backend."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.fake_backend import Server, serving


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    module_server.backend.reset()
    return module_server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as opened:
        yield opened
