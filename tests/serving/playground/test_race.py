"""Two settings on one prompt, side by side."""

from __future__ import annotations

from support.fake_playground_server import STEPS, FakeServer
from support.playground_page import DESKTOP, Page, both_widths, browser_tests, expect, phone_first, run

pytestmark = browser_tests


def race(page: Page, server: FakeServer) -> None:
    """Race lopa against d2f. The fake server streams the same steps to both, and says that d2f took longer."""
    server.told_step_seconds = {"d2f": 0.08}
    page.get_by_label("Race").check()
    page.locator("#b-decoder").select_option("d2f")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_contain_text("Both ran at the same time")


@both_widths
def test_two_settings_race_on_one_prompt(page: Page, server: FakeServer) -> None:
    page.get_by_label("Temperature").fill("0.5")
    server.pause_after_step = 2
    page.get_by_label("Race").check()
    expect(page.locator("#b-temperature")).to_have_value("0.5")  # B begins as A is.
    page.locator("#b-decoder").select_option("d2f")
    page.get_by_role("button", name="Run").click()
    for side in "AB":
        expect(page.get_by_role("group", name=f"Run {side}").locator(".steps")).to_have_text("2")
    assert len(server.bodies) == 2, "both are in flight"
    server.pause_after_step = None
    expect(page.get_by_role("status")).to_contain_text(
        "Both took the same time: A took 7 steps and 0.35 s, B took"
    )
    bodies = sorted(server.bodies, key=lambda body: body["lopa"].get("decoder", ""))
    assert [body["lopa"] for body in bodies] == [
        {"stream_canvas": True},
        {"decoder": "d2f", "stream_canvas": True},
    ]
    assert bodies[0]["messages"] == bodies[1]["messages"]
    assert {body["temperature"] for body in bodies} == {0.5}
    lanes = [page.get_by_role("group", name=f"Run {side}") for side in "AB"]
    first, second = (lane.bounding_box() for lane in lanes)
    if page.viewport_size == DESKTOP:
        assert first["y"] == second["y"] and first["x"] + first["width"] < second["x"]
    else:
        assert first["x"] == second["x"] and first["y"] + first["height"] < second["y"]
    rows = page.locator("#runs tbody tr")
    decoders = rows.locator("[data-name=Decoder]").all_inner_texts()
    assert decoders == ["d2f", "lopa"]
    expect(rows.first).to_contain_text("B · temperature 0.5")
    rows.last.get_by_role("button").click()
    expect(page.locator(".lane")).to_have_count(1)
    page.get_by_label("Race").uncheck()
    run(page)
    expect(page.locator(".lane-title")).to_be_hidden()


def test_the_winner_has_fewer_seconds_as_the_page_shows_them(page: Page, server: FakeServer) -> None:
    server.decode = [*server.decode, ("w" * 200, STEPS)]  # A long word leaves its lane no wider.
    race(page, server)
    status = page.get_by_role("status")
    expect(status).to_contain_text(
        "A took fewer seconds: A took 7 steps and 0.35 s, B took 7 steps and 0.56 s."
    )
    expect(page.get_by_role("group", name="Run A").locator(".place")).to_have_text("fewer seconds")
    expect(page.get_by_role("group", name="Run B").locator(".place")).to_have_text("")
    server.told_step_seconds = {"d2f": 0.01}
    page.get_by_role("button", name="Run").click()
    expect(status).to_contain_text("B took fewer seconds")
    expect(page.get_by_role("group", name="Run B").locator(".place")).to_have_text("fewer seconds")


def test_a_race_with_a_side_that_failed_has_no_winner(page: Page, server: FakeServer) -> None:
    server.error, server.error_param, server.error_decoder = (503, "the group was lost", {}), None, "d2f"
    page.get_by_label("Race").check()
    page.locator("#b-decoder").select_option("d2f")
    page.get_by_role("button", name="Run").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("B: Failed before the first step.")
    expect(status).to_contain_text("A: Done")
    expect(page.get_by_role("alert")).to_have_text(
        "B: The server cannot decode just now. the group was lost."
    )
    assert page.get_by_text("fewer seconds").count() == 0
    server.error_decoder = None
    page.get_by_role("button", name="Run").click()
    expect(status).to_have_text("A: Failed before the first step. B: Failed before the first step.")
    expect(page.get_by_role("alert").locator("strong")).to_have_count(2)


def test_a_race_can_be_stopped(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.get_by_label("Race").check()
    page.get_by_role("button", name="Run").click()
    for side in "AB":
        expect(page.get_by_role("group", name=f"Run {side}").locator(".steps")).to_have_text("2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_have_text("A: Stopped after 2 steps. B: Stopped after 2 steps.")
    expect(page.locator("#runs tbody tr")).to_have_count(2)


@phone_first
def test_errors_are_on_their_side(page: Page, server: FakeServer) -> None:
    page.get_by_label("Race").check()
    page.locator("#b-seed").fill("x")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[aria-invalid=true]")).to_have_id("b-seed")
    assert not server.bodies
    page.locator("#b-seed").fill("")
    server.error = (400, "temperature: got 7.", {})
    page.get_by_role("button", name="Run").click()
    invalid = page.locator("[aria-invalid=true]")
    expect(invalid).to_have_count(2)
    assert {control.get_attribute("id") for control in invalid.all()} == {"a-temperature", "b-temperature"}
