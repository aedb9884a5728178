"""What tests of the playground do on its page."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_playground_server import STEPS

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
Page, Browser = playwright.Page, playwright.Browser

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 740}
PAGE_TIMEOUT_MS = 60_000  # for what must come about, on machines that are busy with something else
expect.set_options(timeout=PAGE_TIMEOUT_MS)
PROMPT = "Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?"

browser_tests = [pytest.mark.browser, pytest.mark.slow]


def _widths(*params: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", params, indirect=True)


both_widths = _widths(pytest.param(DESKTOP, id="1280"), pytest.param(PHONE, id="390"))
desktop_first = _widths(
    pytest.param(DESKTOP, id="1280"), pytest.param(PHONE, id="390", marks=pytest.mark.nightly)
)
phone_first = _widths(
    pytest.param(PHONE, id="390"), pytest.param(DESKTOP, id="1280", marks=pytest.mark.nightly)
)


def compare(page: Page) -> None:
    """Two sides, A with the defaults and B with decoder d2f."""
    page.get_by_label("Compare two settings").check()
    page.locator("#b-decoder").select_option("d2f")


def prompt(page: Page) -> Any:
    return page.get_by_role("textbox", name="Prompt", exact=True)


def run(page: Page, steps: int = STEPS) -> None:
    """Press Run and wait for the end, the last step on show: steps are drawn with the next frame."""
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator("#at")).to_have_text(f"step {steps} of {steps}")


def shown(page: Page) -> str:
    """The text of the canvas; marks for newlines and ends are drawn, not text."""
    text: str = page.locator(".canvas").evaluate("canvas => canvas.textContent")
    return text


def assert_fits(page: Page) -> None:
    """The page needs no sideways scroll, and no text sticks out of what holds it."""
    width: int = page.viewport_size["width"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    outside = page.locator("body *:visible").evaluate_all(
        """(elements, width) => elements
          .filter((element) => element.getBoundingClientRect().right > width + 1 && !element.closest(".unseen"))
          .map((element) => element.outerHTML.slice(0, 80))""",
        width,
    )
    assert outside == []
