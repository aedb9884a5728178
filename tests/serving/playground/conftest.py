"""The playground page, in a real browser, against a server that replays a decode."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_playground_server import FakeServer, serve
from support.playground_page import DESKTOP, Browser, Page, assert_fits, expect

HERE = Path(__file__).parent
LEFT_OUT = ("390", "1280")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, of which each starts a page in a browser. `make test-long` tries both widths; one
    of them, which depends on the test's name, is enough for `.ci/run`."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("slow")
            test, _, width = item.nodeid.partition("[")
            if width.startswith(LEFT_OUT[zlib.crc32(test.encode()) % 2]):
                item.add_marker("nightly")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serve(FakeServer()) as fake:
        yield fake


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, server: FakeServer) -> Iterator[Page]:
    """The page, its settings open, on a desktop or at the width that `both_widths` gives. Script errors, requests to
    other hosts, and at the end what sticks out of the page fail the test."""
    viewport = getattr(request, "param", DESKTOP)
    context = browser.new_context(viewport=viewport, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda sent: None if sent.url.startswith(server.url) else wrong.append(sent.url))
    opened.goto(server.url)
    expect(opened.locator("#run")).to_be_visible()
    expect(opened.get_by_label("Model")).to_have_value(server.models[0])
    expect(opened.locator("#settings")).to_have_js_property("open", viewport == DESKTOP)
    opened.locator("#settings").evaluate("settings => (settings.open = true)")
    yield opened
    assert_fits(opened)
    # A data: address is no host.
    assert not [what for what in wrong if not what.startswith("data:")]
    context.close()
