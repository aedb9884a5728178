"""The playground page, in a real browser, against a server that replays a decode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fake_playground_server import FakeServer, serve
from support.playground_page import DESKTOP, Browser, Page, expect


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serve(FakeServer()) as fake:
        yield fake


@pytest.fixture
def page(browser: Browser, server: FakeServer) -> Iterator[Page]:
    """The page, on a desktop. Script errors and requests to other hosts fail the test."""
    context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda sent: None if sent.url.startswith(server.url) else wrong.append(sent.url))
    opened.goto(server.url)
    expect(opened.locator("#run")).to_be_visible()
    expect(opened.get_by_label("Model")).to_have_value(server.models[0])
    yield opened
    # A data: address is no host.
    assert not [what for what in wrong if not what.startswith("data:")]
    context.close()
