"""The playground page, in a real browser, against a server that replays a decode."""

from __future__ import annotations

import re

from support.fake_playground_server import STEPS, TEXT, TOKENS, FakeServer
from support.playground_page import (
    Page,
    browser_tests,
    desktop_first,
    expect,
    phone_first,
    prompt,
    run,
    shown,
)

pytestmark = browser_tests


@desktop_first
def test_run_fills_canvas_and_shows_branches_stats_and_row(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 3
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".steps")).to_have_text("3")
    expect(page.get_by_role("status")).to_have_text("Decoding …")
    masks = page.locator(".canvas .mask")
    expect(masks).to_have_count(sum(step > 3 for _, step in server.decode))
    newest = page.locator(".canvas .new")
    assert newest.all_inner_texts() == [text for text, step in server.decode if step == 3]
    branches = page.get_by_role("row", name=re.compile("anchor|[+]"))
    names = [row.get_by_role("rowheader").text_content() for row in branches.all()]
    assert names == ["anchor", "+1", "+2", "+3 won"]
    assert branches.nth(1).get_by_role("cell").first.inner_text() == "3"
    expect(page.locator(".happened")).to_contain_text("4 branches competed, and branch +3 won")
    for what in ".depth", ".guesses":
        expect(page.locator(what)).to_be_hidden()
    winner = page.locator(".branch-table .won")
    confidences = [float(row.get_by_role("cell").last.inner_text()) for row in branches.all()]
    assert float(winner.get_by_role("cell").last.inner_text()) == max(confidences)
    server.pause_after_step = None

    expect(page.get_by_role("status")).to_contain_text(
        f"{TOKENS} tokens after a prompt of 39, in {STEPS} steps and 0.35 s; 4.29 tokens per step"
    )
    expect(page.locator("div:has(> .forwards) > dt")).to_have_text("Branches scored")
    expect(masks).to_have_count(0)
    assert shown(page) == TEXT, "the end of the answer and the padding behind it are not drawn"
    expect(page.locator(".canvas > span")).to_have_count(TOKENS - 1)
    first, last = page.get_by_text("Mia", exact=True).first, newest.first
    colours = [cell.evaluate("cell => getComputedStyle(cell).backgroundColor") for cell in (first, last)]
    assert colours[0] != colours[1], "tokens of different steps have different colours"
    assert page.locator(".tpf").inner_text() == f"{TOKENS / STEPS:.2f}"
    row = page.locator("#runs tbody tr")
    expect(row).to_have_count(1)
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[0].startswith("Mia buys 6 boxes")
    assert cells[1:] == ["lopa", "defaults", "30", "7", "4.29", "85.7", "25", "stop", "0.35"]


@phone_first
def test_accepted_drafts_are_shown_with_what_each_report_filled(page: Page, server: FakeServer) -> None:
    expect(page.locator(".depth")).to_be_hidden()
    server.verified = True
    run(page)
    slider = page.get_by_role("slider", name="Step")
    slider.fill("4")  # Five positions, in three denoising steps.
    expect(page.locator(".happened")).to_have_text(
        "3 denoising steps in one forward pass: 5 tokens. Guessed right: 2, guessed wrong: 1."
    )
    guesses = page.get_by_role("list", name="Guesses").get_by_role("listitem")
    assert [guess.text_content() for guess in guesses.all()] == ["right: -=", "right: 1left", "wrong: no"]
    assert [guess.get_attribute("class") for guess in guesses.all()] == ["right", "right", "wrong"]
    expect(page.locator(".branch-table")).to_be_hidden()  # Guesses do not compete by their confidence.
    # 3 + 3 + 3 + 3 + 3 + 3 + 2 denoising steps.
    slider.fill(str(STEPS))
    expect(page.locator(".depth")).to_have_text(f"{20 / STEPS:.2f}")
    assert page.locator(".steps").inner_text() == str(STEPS)


@desktop_first
def test_stop_hangs_up_and_says_so(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".steps")).to_have_text("2")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped after 2 steps.")
    assert server.client_disconnected.wait(5), "the request went on"
    expect(page.locator("#runs tbody tr")).to_contain_text("stopped")
    server.pause_after_step = None
    run(page)


@phone_first
def test_status_and_steps_come_into_view(page: Page, server: FakeServer) -> None:
    page.set_viewport_size({**page.viewport_size, "height": 400})
    page.get_by_label("Compare two settings").scroll_into_view_if_needed()
    expect(page.get_by_role("status")).not_to_be_in_viewport()
    page.get_by_label("Seed").press("Control+Enter")
    expect(page.get_by_role("status")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.get_by_role("status")).to_be_in_viewport(ratio=1)
    page.locator("#runs button").click()
    expect(page.get_by_role("status")).to_be_in_viewport(ratio=1)
    server.error, server.error_param = (503, "the group was lost", {}), None
    page.get_by_label("Seed").press("Control+Enter")
    expect(page.get_by_role("alert")).to_be_in_viewport(ratio=1)


def test_keyboard_alone_is_enough(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.keyboard.press("Tab")
    focused = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid", "focus is visible"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(prompt(page)).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.locator(".steps")).to_have_text("2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    server.pause_after_step = None
    page.keyboard.press("Control+Enter")
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")
    slider = page.get_by_role("slider", name="Step")
    for _ in range(60):
        if slider.evaluate("slider => slider === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(slider).to_be_focused()
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "before step 1")
    expect(page.locator(".canvas .mask")).to_have_count(TOKENS - 1)
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", f"step 1 of {STEPS}")
    expect(page.locator(".canvas .mask")).to_have_count(
        sum(step > 1 for _, step in server.decode[: TOKENS - 1])
    )
    expect(page.locator(".happened")).to_contain_text("One branch, one denoising step")
    page.keyboard.press("ArrowRight")
    assert page.locator(".steps").inner_text() == "2"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=re.compile("Pause|Play"))).to_be_focused()
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")
    page.locator("#runs button").last.press("Enter")
    expect(page.locator("#at")).to_have_text("step 2 of 2")
    expect(page.get_by_role("status")).to_have_text("Stopped after 2 steps.")


def test_markup_in_tokens_stays_text_and_newlines_break(page: Page, server: FakeServer) -> None:
    hostile = ["<img src=x onerror=alert(1)>", "\n\n", "</span><script>alert(1)</script>", "&amp;"]
    server.decode = [(text, 1) for text in hostile]
    server.entropy = True
    prompt(page).fill("<b>bold</b>")
    run(page, steps=1)
    assert shown(page) == "".join(hostile)
    assert page.locator("img, .canvas script, #runs td b").count() == 0
    lines = page.locator(".canvas > span").evaluate_all(
        "cells => cells.map(c => c.getBoundingClientRect().top)"
    )
    assert lines[2] > lines[0], "the newlines broke the line"


def test_colours_can_be_read(page: Page, server: FakeServer) -> None:
    server.decode = [(f" {step}", step) for step in range(1, 13)]  # Every hue, more or less.
    server.step_seconds = 0.0
    run(page, steps=12)
    for scheme in "light", "dark":
        page.emulate_media(color_scheme=scheme)
        for what in READ:
            contrast = min(page.locator(what).evaluate_all(CONTRAST))
            assert contrast >= 4.5, f"{what} has a contrast of {contrast:.1f} in {scheme} mode"


READ = [
    ".canvas .token",
    "#run",
    "label",
    "dt",
    "#runs thead th",
    ".branch-table td:last-child",
    "#status",
    "#at",
]

# WCAG's contrast of each element's text with the nearest background behind it, both as sRGB pixels.
CONTRAST = """elements => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const linear = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) => {
      const c = byte / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : colour;
  };
  return elements.map((element) => {
    const pair = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  });
}"""
