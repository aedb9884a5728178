"""Two settings on one prompt, side by side."""

from __future__ import annotations

from support.fake_playground_server import STEPS, FakeServer
from support.playground_page import (
    DESKTOP,
    Page,
    both_widths,
    browser_tests,
    compare,
    expect,
    phone_first,
    run,
)

pytestmark = browser_tests


@both_widths
def test_two_settings_race_on_one_prompt_and_clock(page: Page, server: FakeServer) -> None:
    server.decode = [*server.decode[:-3], ("w" * 200, 5), ("", 5)]  # A long word leaves its lane no wider.
    server.quick_decoder, server.pause_after_step = "d2f", 2
    page.get_by_label("Temperature").fill("0.5")
    compare(page)
    expect(page.locator("#b-temperature")).to_have_value("0.5")  # B begins as A is.
    page.get_by_role("button", name="Run").click()
    a, b = (page.get_by_role("group", name=f"Run {side}") for side in "AB")
    for side in a, b:
        expect(side.locator(".steps")).to_have_text("2")
    assert len(server.bodies) == 2, "both are in flight"
    server.pause_after_step = None
    expect(page.get_by_role("status")).to_contain_text("A took 7 steps and 0.35 s, B took 4 steps and 0.20 s")
    expect(page.locator("#factor")).to_have_text("1.8 × fewer steps")
    expect(page.locator("#factor-detail")).to_contain_text("A takes 7. The answers are the same.")
    expect(page.locator(".lane.fewer")).to_have_attribute("aria-label", "Run B")
    bodies = sorted(server.bodies, key=lambda body: body["lopa"].get("decoder", ""))
    assert [body["lopa"].get("decoder") for body in bodies] == [None, "d2f"]
    assert bodies[0]["messages"] == bodies[1]["messages"]
    assert {body["temperature"] for body in bodies} == {0.5}
    first, second = (lane.first.bounding_box() for lane in (a, b))
    if page.viewport_size == DESKTOP:
        assert first["y"] == second["y"] and first["x"] + first["width"] < second["x"]
    else:
        assert first["x"] == second["x"] and first["y"] + first["height"] < second["y"]
    clock = page.get_by_role("slider", name="Step")
    clock.fill("4")
    expect(a.locator(".steps")).to_have_text("4")
    assert a.locator(".mask").count() and not b.locator(".mask").count()
    assert [lane.locator(".place").inner_text() for lane in (a, b)] == ["", "done in 4 steps"]
    expect(page.locator("#factor")).to_have_text("Step 4")
    bars = page.locator(".bars")
    assert [row.locator("i").count() for row in bars.all()] == [7, 4]
    lefts = [row.locator("i").nth(3).bounding_box()["x"] for row in bars.all()]
    assert lefts[0] == lefts[1], "both sides have one axis"
    rows = page.locator("#runs tbody tr")
    assert rows.locator("[data-name=Decoder]").all_inner_texts() == ["d2f", "lopa"]
    expect(rows.first).to_contain_text("B · temperature 0.5")
    rows.last.get_by_role("button").click()
    expect(page.locator(".lane")).to_have_count(1)
    page.get_by_label("Compare two settings").uncheck()
    run(page)
    expect(page.locator(".side")).to_be_hidden()


def test_equal_settings_are_one_run_and_no_comparison(page: Page, server: FakeServer) -> None:
    page.get_by_label("Compare two settings").check()
    page.locator("#b-decoder").select_option("lopa")  # The default of A.
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_contain_text(
        "Both sides have the same settings, so this is one run"
    )
    assert len(server.bodies) == 1
    expect(page.locator(".lane")).to_have_count(1)
    expect(page.locator("#headline")).to_be_hidden()


def test_a_race_with_a_side_that_failed_has_no_winner(page: Page, server: FakeServer) -> None:
    server.error, server.error_param, server.error_decoder = (503, "the group was lost", {}), None, "d2f"
    page.get_by_label("Compare two settings").check()
    page.locator("#b-decoder").select_option("d2f")
    page.get_by_role("button", name="Run").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("B: Failed before the first step.")
    expect(status).to_contain_text("A: Done")
    expect(page.get_by_role("alert")).to_have_text(
        "B: The server cannot decode just now. the group was lost."
    )
    expect(page.locator("#factor")).to_have_text(f"Step {STEPS}")
    server.error_decoder = None
    page.get_by_role("button", name="Run").click()
    expect(status).to_have_text("A: Failed before the first step. B: Failed before the first step.")
    expect(page.get_by_role("alert").locator("strong")).to_have_count(2)


def test_a_race_can_be_stopped(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    compare(page)
    page.get_by_role("button", name="Run").click()
    for side in "AB":
        expect(page.get_by_role("group", name=f"Run {side}").locator(".steps")).to_have_text("2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_have_text("A: Stopped after 2 steps. B: Stopped after 2 steps.")
    expect(page.locator("#runs tbody tr")).to_have_count(2)


@phone_first
def test_errors_are_on_their_side(page: Page, server: FakeServer) -> None:
    compare(page)
    page.locator("#b-seed").fill("x")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[aria-invalid=true]")).to_have_id("b-seed")
    assert not server.bodies
