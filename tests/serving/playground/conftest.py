"""The playground page, in a real browser, against a server that replays a decode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fake_playground_server import FakeServer, serve
from support.playground_page import DESKTOP, PAGE_TIMEOUT_MS, Browser, Page, assert_fits, expect


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serve(FakeServer()) as fake:
        yield fake


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, server: FakeServer) -> Iterator[Page]:
    """The page with the default settings on one side, Advanced open, on a desktop or at a parameter's width. Script
    errors, requests to other hosts, and at the end what sticks out of the page fail the test."""
    viewport = getattr(request, "param", DESKTOP)
    context = browser.new_context(viewport=viewport, reduced_motion="reduce")
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda sent: None if sent.url.startswith(server.url) else wrong.append(sent.url))
    opened.goto(f"{server.url}#race=0")
    expect(opened.locator("#run")).to_be_visible()
    expect(opened.get_by_label("Model")).to_have_value(server.models[0])
    expect(opened.locator("#settings")).to_have_js_property("open", False)
    opened.locator("#settings").evaluate("settings => (settings.open = true)")
    yield opened
    assert_fits(opened)
    # A data: or blob: address is no host.
    assert not [what for what in wrong if not what.startswith(("data:", "blob:"))]
    context.close()
