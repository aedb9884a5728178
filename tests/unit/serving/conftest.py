"""The HTTP application over a fake backend, for each file of this folder that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fake_backend import Server, serving


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Asks for the API keys in the file's API_KEYS, if it has them."""
    with serving(api_keys=getattr(request.module, "API_KEYS", [])) as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    """As it was at the start."""
    module_server.backend.reset()
    return module_server
