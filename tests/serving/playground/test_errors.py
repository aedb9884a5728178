"""What the playground says where a request is refused or breaks, and where it says it."""

from __future__ import annotations

import pytest

from support.fake_playground_server import FakeServer
from support.playground_page import Page, browser_tests, compare, desktop_first, expect, phone_first, run

pytestmark = browser_tests


@phone_first
def test_refusals_show_the_servers_message(page: Page, server: FakeServer) -> None:
    run(page)
    alert, invalid = page.get_by_role("alert"), page.locator("[aria-invalid=true]")
    for status, headers, title, end in [
        (400, {}, "The server refused the request.", ""),
        (429, {"Retry-After": "2"}, "The server is busy.", " Wait 2 s."),
        (500, {}, "The server answered 500.", ""),
    ]:
        server.error = (status, "temperature: got 7.", headers)
        page.get_by_role("button", name="Run").click()
        expect(alert).to_have_text(f"{title} temperature: got 7.{end}")
        expect(page.get_by_role("status")).to_have_text("Failed before the first step.")
        expect(invalid).to_have_attribute("name", "temperature")
        expect(invalid).to_be_focused()
        expect(alert).to_be_in_viewport(ratio=1)
        assert invalid.get_attribute("aria-describedby") == alert.get_attribute("id")
        field, message = invalid.bounding_box(), alert.bounding_box()
        assert 0 <= message["y"] - field["y"] - field["height"] < 10, "the message is next to its field"
        expect(page.locator("#at")).to_have_text("")  # Nothing of the run before is below the error.
        expect(page.locator(".steps")).to_have_text("–")
    server.error_param = None
    server.error = (503, "the group was lost", {"Retry-After": "2"})
    page.get_by_role("button", name="Run").click()
    expect(alert).to_have_text("The server cannot decode just now. the group was lost. Wait 2 s.")
    expect(invalid).to_have_count(0)
    lanes = page.locator("#lanes").bounding_box()
    assert alert.bounding_box()["y"] < lanes["y"], "the message is above the result"
    server.error = None
    run(page)
    expect(alert).to_be_hidden()
    expect(invalid).to_have_count(0)


@desktop_first
def test_key_is_asked_for_and_sent(page: Page, server: FakeServer) -> None:
    server.api_key = "sesame"
    page.reload()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This server asks for an API key. Type yours here")
    key = page.get_by_label("API key")
    expect(key).to_have_attribute("aria-invalid", "true")
    expect(key).to_be_focused()
    key.fill("open")
    key.press("Tab")
    expect(alert).to_contain_text("The server does not know this key.")
    assert "Bearer" not in page.locator("body").inner_text()
    key.fill("sesame")
    key.press("Tab")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_label("Model")).to_have_value("demo")
    run(page)
    kept = page.evaluate("() => [JSON.stringify(localStorage), document.cookie, location.href]")
    assert not any("sesame" in where for where in kept), "the key is kept for the tab only"
    assert page.evaluate("() => sessionStorage.getItem('lopa-key')") == "sesame"


def test_what_breaks_in_the_middle_is_shown(page: Page, server: FakeServer) -> None:
    server.error_step = 4
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_have_text(
        "The server ended the request with an error. a worker was lost."
    )
    expect(page.locator(".steps")).to_have_text("3")
    expect(page.locator("#runs tbody tr")).to_contain_text("failed")
    page.context.set_offline(True)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.context.set_offline(False)


def test_words_in_place_of_numbers_are_not_sent(page: Page, server: FakeServer) -> None:
    page.get_by_label("Seed").fill("12 34")
    page.get_by_role("button", name="Run").click()
    message = 'Not sent. Got "12 34"; allowed: a whole number, or nothing for the default.'
    expect(page.get_by_role("alert")).to_have_text(message)
    expect(page.get_by_label("Seed")).to_be_focused()
    assert not server.bodies


def test_a_key_that_no_header_can_have_is_not_sent(page: Page, server: FakeServer) -> None:
    key = page.get_by_label("API key")
    key.fill("schlüssel")  # In Latin-1.
    key.press("Tab")
    expect(page.get_by_role("alert")).to_be_hidden()
    key.fill("sesame…")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert").first).to_contain_text("This key cannot be sent.")
    expect(key).to_have_attribute("aria-invalid", "true")
    assert not server.bodies


def test_an_error_goes_when_its_field_is_edited(page: Page, server: FakeServer) -> None:
    server.error = (400, "temperature: got 7; allowed: at most 2 (Above 0 tokens are drawn.)", {})
    page.get_by_role("button", name="Run").click()
    alert, field = page.get_by_role("alert"), page.get_by_label("Temperature")
    expect(alert).to_have_text(
        "The server refused the request. temperature: got 7; allowed: at most 2 (Above 0 tokens are drawn.)"
    )
    page.get_by_label("Seed").fill("1")
    expect(alert).to_be_visible()
    field.fill("1")
    expect(alert).to_be_hidden()
    for attribute in "aria-invalid", "aria-describedby":
        assert field.get_attribute(attribute) is None


@pytest.mark.parametrize(
    ("status", "code", "message", "field"),
    [
        (400, "context_length_exceeded", "10 prompt tokens and max_tokens 9999 exceed 2048", "a-max_tokens"),
        (400, "context_length_exceeded", "2500 prompt tokens leave no room for an answer", "prompt"),
        (413, "body_too_large", "got a body of 600000 bytes", "prompt"),
    ],
)
def test_what_is_too_long_is_said_where_it_can_be_changed(
    page: Page, server: FakeServer, status: int, code: str, message: str, field: str
) -> None:
    server.error, server.error_code = (status, message, {}), code
    server.error_param = "messages" if status == 400 else None
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[aria-invalid=true]")).to_have_id(field)
    expect(page.get_by_role("alert")).to_contain_text(f"{message}.")


def test_the_first_of_several_wrong_fields_has_the_focus(page: Page, server: FakeServer) -> None:
    compare(page)
    server.error = (400, "temperature: got 7", {})
    for late_side in "lopa", "d2f":  # The side whose refusal comes last makes no difference.
        server.slow_decoder = late_side
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("status")).to_have_text(
            "A: Failed before the first step. B: Failed before the first step."
        )
        expect(page.locator("[aria-invalid=true]")).to_have_count(2)
        expect(page.locator("#a-temperature")).to_be_focused()


def test_nothing_of_the_run_before_is_below_another_ones_end(page: Page, server: FakeServer) -> None:
    run(page)
    server.pause_before_steps = True
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".steps")).to_have_text("–")
    expect(page.locator(".canvas .token")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_have_attribute("aria-disabled", "false")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped before the first step.")
    expect(page.locator(".steps")).to_have_text("–")
    server.pause_before_steps = False
    run(page)
    page.get_by_label("Seed").fill("x")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_have_text("Not sent. The run before is below.")
