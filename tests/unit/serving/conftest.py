"""The HTTP application over a fake backend, for each file of this folder that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.fake_backend import Server, serving


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """With the HTTP settings in the file's HTTP_SETTINGS, if it has them."""
    with serving(**getattr(request.module, "HTTP_SETTINGS", {})) as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    """As it was at the start."""
    module_server.backend.reset()
    return module_server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """Without an API key."""
    with httpx.Client(base_url=server.url, timeout=30) as opened:
        yield opened
