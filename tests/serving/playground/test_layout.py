"""What is where and how large: on phones, and with long prompts and answers."""

from __future__ import annotations

from support.fake_playground_server import FakeServer
from support.playground_page import PHONE, Page, browser_test, expect, run


@browser_test
def test_a_phone_neither_zooms_into_fields_nor_has_tiny_buttons(page: Page, server: FakeServer) -> None:
    page.set_viewport_size(PHONE)
    page.get_by_text("System prompt and tools").click()
    run(page)
    fields = page.locator("form :is(input:not([type=radio], [type=checkbox]), select, textarea):visible")
    assert fields.count() > 10
    sizes = fields.evaluate_all("all => all.map((field) => getComputedStyle(field).fontSize)")
    assert set(sizes) == {"16px"}
    buttons = page.locator(":is(.small, #runs button):visible")
    assert buttons.count() > 8  # Examples, those of the answer and of the link, and a run.
    assert min(button.bounding_box()["height"] for button in buttons.all()) >= 36
    page.locator("#runs [data-name=Steps]").click()  # Any part of a row can be tapped.
    expect(page.get_by_role("status")).to_be_in_viewport(ratio=1)
    expect(page.locator(".asked-prompt")).to_be_visible()


@browser_test
def test_what_the_settings_mean_is_a_link_to_their_documentation(page: Page, server: FakeServer) -> None:
    link = page.get_by_role("link", name="What do these settings mean?")
    expect(link).to_have_attribute("href", "https://lopa-ray.github.io/lopa-ray/settings/")
