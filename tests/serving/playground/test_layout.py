"""What is where and how large: on phones, and with long prompts and answers."""

from __future__ import annotations

import json

from support.fake_playground_server import STEPS, FakeServer
from support.playground_page import PHONE, Page, assert_fits, both_widths, browser_tests, expect, prompt, run

pytestmark = browser_tests


@both_widths
def test_long_words_stick_out_of_nothing(page: Page, server: FakeServer) -> None:
    server.decode = [("w" * 200, STEPS), ("\n", STEPS), *server.decode]
    server.text = server.reasoning = "w" * 300
    server.calls = [("f" * 200, json.dumps({"a": "x" * 300}))]
    page.get_by_label("Decoder").select_option("self_speculation")
    page.get_by_label("Temperature").fill("0.123456789")
    page.get_by_label("Seed").fill("1234567890123")
    prompt(page).fill("p" * 300)
    run(page)
    expect(page.locator("#runs [data-name=TPF]")).to_be_visible()
    page.get_by_text("Reasoning").click()
    for width in (page.viewport_size["width"], 1000, 700, 500):
        page.set_viewport_size({**page.viewport_size, "width": width})
        assert_fits(page)
    page.get_by_role("button", name="Continue the chat").click()
    page.get_by_text("System prompt and tools").click()


def test_nothing_is_higher_than_the_page(page: Page, server: FakeServer) -> None:
    prompt(page).fill("short")
    short = prompt(page).bounding_box()["height"]
    prompt(page).fill("\n" * 12)
    assert prompt(page).bounding_box()["height"] > short * 1.5
    prompt(page).fill("\n" * 500 + "?")
    server.decode = [(f" word{at}", STEPS) for at in range(1500)]
    run(page)
    canvas = page.locator(".canvas")
    for box in (prompt(page), canvas):
        assert box.bounding_box()["height"] < page.viewport_size["height"]
    assert canvas.evaluate("canvas => canvas.scrollHeight > canvas.clientHeight")


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
    expect(page.locator("#asked-prompt")).to_be_visible()


def test_help_explains_each_setting_without_another_host(page: Page, server: FakeServer) -> None:
    page.get_by_role("button", name="What do these settings mean?").click()
    help_ = page.get_by_role("dialog", name="Help")
    explained = " ".join(help_.locator("dt").all_inner_texts())
    assert all(title in explained for title in page.locator(".side-settings label").all_inner_texts())
    assert help_.locator("a").count() == 0
    help_.get_by_role("button", name="Close").click()
    expect(help_).to_be_hidden()
