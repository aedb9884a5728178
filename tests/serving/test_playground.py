"""The playground page, in a real browser, against a server that replays a decode."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from support.fake_playground_server import STEPS, TEXT, TOKENS, FakeServer, serve

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
Page, Browser = playwright.Page, playwright.Browser

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
PROMPT = "Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?"

browser_test = pytest.mark.browser


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
    yield opened
    # A data: address is no host.
    assert not [what for what in wrong if not what.startswith("data:")]
    context.close()


def prompt(page: Page) -> Any:
    return page.get_by_role("textbox", name="Prompt")


def run(page: Page) -> None:
    """Press Run and wait for the end, the last step on show."""
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")


def shown(page: Page) -> str:
    """The text of the canvas; marks for newlines and ends are drawn, not text."""
    text: str = page.locator("#canvas").evaluate("canvas => canvas.textContent")
    return text


def test_policy_allows_just_this_script_and_style() -> None:
    html = files("cluster.serving.http").joinpath("playground.html").read_text(encoding="utf-8")
    for policy, tag in ("script-src", '<script type="module">'), ("style-src", "<style>"):
        (inside,) = re.findall(f"{tag}(.*?)</", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{policy} 'sha256-{digest}';" in html, f"the page changed; write {policy} 'sha256-{digest}'"


@browser_test
def test_run_fills_canvas_and_shows_branches_stats_and_row(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 3
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#steps")).to_have_text("3")
    expect(page.get_by_role("status")).to_have_text("Decoding …")
    masks = page.locator("#canvas .mask")
    expect(masks).to_have_count(sum(step > 3 for _, step in server.decode))
    newest = page.locator("#canvas .new")
    assert newest.all_inner_texts() == [text for text, step in server.decode if step == 3]
    branches = page.get_by_role("row", name=re.compile("anchor|[+]"))
    names = [row.get_by_role("rowheader").text_content() for row in branches.all()]
    assert names == ["anchor", "+1", "+2", "+3, won"]
    assert branches.nth(1).get_by_role("cell").first.inner_text() == "3@7"
    winner = page.locator("#branch-table .won")
    confidences = [float(row.get_by_role("cell").last.inner_text()) for row in branches.all()]
    assert float(winner.get_by_role("cell").last.inner_text()) == max(confidences)
    server.pause_after_step = None

    expect(page.get_by_role("status")).to_contain_text(
        f"{TOKENS} tokens after a prompt of 39, in {STEPS} steps"
    )
    expect(masks).to_have_count(0)
    expect(page.locator("#canvas .end")).to_have_count(3)
    assert shown(page) == TEXT
    first, last = page.get_by_text("Mia", exact=True).first, newest.first
    colours = [cell.evaluate("cell => getComputedStyle(cell).backgroundColor") for cell in (first, last)]
    assert colours[0] != colours[1], "tokens of different steps have different colours"
    assert page.locator("#tpf").inner_text() == f"{TOKENS / STEPS:.2f}"
    row = page.locator("#runs tbody tr")
    expect(row).to_have_count(1)
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[0].startswith("Mia buys 6 boxes")
    assert cells[1:] == ["max 64", "30", "7", "4.29", "85.7", "25", "stop", "0.35"]


@browser_test
def test_accepted_drafts_are_shown_with_what_each_report_filled(page: Page, server: FakeServer) -> None:
    expect(page.locator("#depth")).to_be_hidden()
    server.verified = True
    run(page)
    slider = page.get_by_role("slider", name="Step")
    slider.fill("4")  # Five positions, in three steps of the rule.
    rows = page.locator("#branch-table tbody tr")
    names = [row.get_by_role("rowheader").text_content() for row in rows.all()]
    assert names == ["anchor", "+2, accepted", "+3, accepted", "+1"]
    assert rows.nth(1).get_by_role("cell").first.inner_text() == "-@16 +1"
    marks = "row => getComputedStyle(row.cells[0], '::before').content"
    assert [row.evaluate(marks) for row in rows.all()] == ['""', '"✓"', '"▶"', '""']
    expect(page.locator("#accepted")).to_have_text("Accepted 2 drafts: one forward did 3 steps of the rule.")
    newest = page.locator("#canvas .new")
    titles = [cell.get_attribute("title").split("step 4, ")[1] for cell in newest.all()]
    assert titles == [f"step {at} of the rule in it" for at in (1, 2, 3, 1, 2)]
    parts = page.locator("#bars i").nth(3).locator("b")
    heights = [part.bounding_box()["height"] for part in parts.all()]
    assert len(heights) == 3 and heights[0] == pytest.approx(2 * heights[2], abs=1)
    # 3 + 3 + 3 + 3 + 3 + 3 + 2 steps of the rule.
    slider.fill(str(STEPS))
    expect(page.locator("#depth")).to_have_text(f"{20 / STEPS:.2f}")
    assert page.locator("#steps").inner_text() == str(STEPS)


@browser_test
def test_a_comparison_of_forks_shows_no_depth(page: Page, server: FakeServer) -> None:
    run(page)
    for what in "#depth", "#accepted":
        expect(page.locator(what)).to_be_hidden()
    expect(page.locator("#branch-table .accepted")).to_have_count(0)
    expect(page.locator("#bars b")).to_have_count(STEPS)
    assert "of the rule" not in page.locator("#canvas").inner_html()


@browser_test
def test_sends_only_what_was_set(page: Page, server: FakeServer) -> None:
    run(page)
    assert server.bodies[-1] == {
        "model": "demo",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
        "lopa": {"stream_canvas": True},
    }
    texts = {"Branches": "auto", "Confidence threshold": "0.8", "Block size": "16", "Temperature": "0.5"}
    for name, value in {**texts, "Top p": "0.9", "Seed": "7", "Max tokens": ""}.items():
        page.get_by_label(name).fill(value)
    page.get_by_label("Decoder").select_option("lopa")
    page.get_by_label("Window attention").select_option("block_causal")
    page.get_by_label("Lookahead").select_option("verified")
    page.get_by_label("Acceptance").fill("exact")
    page.get_by_label("Raw text").check()
    prompt(page).fill("2+2=")
    run(page)
    lopa = {"num_branches": "auto", "confidence_threshold": 0.8, "block_size": 16}
    choices = {"decoder": "lopa", "window_attention": "block_causal", "lookahead": "verified"}
    choices["acceptance"] = "exact"
    assert server.paths[-1] == "/v1/completions"
    assert server.bodies[-1] == {
        "model": "demo",
        "prompt": "2+2=",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "lopa": {**lopa, **choices, "stream_canvas": True},
    }
    newest = page.locator("#runs tbody tr").first
    expect(newest).to_contain_text("2+2=")
    expect(newest).to_contain_text("raw · lopa · branches auto")
    page.get_by_label("Decoder").select_option("d2f")
    for name in "Branches", "Lookahead", "Acceptance":
        expect(page.get_by_label(name)).to_be_disabled()


@browser_test
def test_stop_hangs_up_and_says_so(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#steps")).to_have_text("2")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped after 2 steps.")
    assert server.client_disconnected.wait(5), "the request went on"
    expect(page.locator("#runs tbody tr")).to_contain_text("stopped")
    server.pause_after_step = None
    run(page)


@browser_test
def test_refusals_show_the_servers_message(page: Page, server: FakeServer) -> None:
    alert, invalid = page.get_by_role("alert"), page.locator("[aria-invalid=true]")
    for status, headers, title, end in [
        (400, {}, "The server refused the request.", ""),
        (429, {"Retry-After": "2"}, "The server is busy.", " Wait 2 s."),
        (500, {}, "The server answered 500.", ""),
    ]:
        server.error = (status, "temperature: got 7.", headers)
        page.get_by_role("button", name="Run").click()
        expect(alert).to_have_text(f"{title} temperature: got 7.{end}")
        expect(page.get_by_role("status")).to_have_text("Failed.")
        expect(invalid).to_have_attribute("name", "temperature")
    server.error = None
    run(page)
    expect(alert).to_be_hidden()
    expect(invalid).to_have_count(0)


@browser_test
def test_key_is_asked_for_and_sent(page: Page, server: FakeServer) -> None:
    server.api_key = "sesame"
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("API key: got none that is known")
    key = page.get_by_label("API key")
    expect(key).to_have_attribute("aria-invalid", "true")
    key.fill("sesame")
    key.press("Tab")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_label("Model")).to_have_value("demo")
    run(page)
    kept = page.evaluate("() => [localStorage.length, document.cookie, sessionStorage.length]")
    assert kept == [0, "", 1], "the key is kept for the tab only"


@browser_test
def test_what_breaks_in_the_middle_is_shown(page: Page, server: FakeServer) -> None:
    server.error_step = 4
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_have_text(
        "The server ended the request with an error. a worker was lost"
    )
    expect(page.locator("#steps")).to_have_text("3")
    expect(page.locator("#runs tbody tr")).to_contain_text("failed")
    page.context.set_offline(True)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.context.set_offline(False)


@browser_test
def test_words_in_place_of_numbers_are_not_sent(page: Page, server: FakeServer) -> None:
    page.get_by_label("Seed").fill("12 34")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text('seed: got "12 34"; allowed: a whole number')
    assert not server.bodies


@browser_test
def test_keyboard_alone_is_enough(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.keyboard.press("Tab")
    focused = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid", "focus is visible"
    page.keyboard.press("Tab")
    expect(prompt(page)).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#steps")).to_have_text("2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    server.pause_after_step = None
    page.keyboard.press("Control+Enter")
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")
    slider = page.get_by_role("slider", name="Step")
    for _ in range(30):
        if slider.evaluate("slider => slider === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(slider).to_be_focused()
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", f"step 1 of {STEPS}")
    expect(page.locator("#canvas .mask")).to_have_count(sum(step > 1 for _, step in server.decode))
    expect(page.locator("#branch-table tbody tr")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    assert page.locator("#steps").inner_text() == "2"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Pause")).to_be_focused()
    expect(page.locator("#at")).to_have_text(f"step 3 of {STEPS}")
    page.locator("#runs button").last.press("Enter")
    expect(page.locator("#at")).to_have_text("step 2 of 2")
    expect(page.get_by_role("status")).to_have_text("Stopped after 2 steps.")


@browser_test
def test_markup_in_tokens_stays_text_and_newlines_break(page: Page, server: FakeServer) -> None:
    hostile = ["<img src=x onerror=alert(1)>", "\n\n", "</span><script>alert(1)</script>", "&amp;"]
    server.decode = [(text, 1) for text in hostile]
    server.entropy = True
    prompt(page).fill("<b>bold</b>")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    assert shown(page) == "".join(hostile)
    assert page.locator("img, #canvas script, #runs td b").count() == 0
    expect(page.locator("#canvas .newline")).to_have_count(2)
    lines = page.locator("#canvas > span").evaluate_all(
        "cells => cells.map(c => c.getBoundingClientRect().top)"
    )
    assert lines[2] > lines[0], "the newlines broke the line"
    confidence = float(page.locator("#branch-table td").last.inner_text())
    share = page.locator("#branch-table .bar i").evaluate(
        "bar => bar.clientWidth / bar.parentNode.clientWidth"
    )
    assert confidence < 0 < share < 1


@browser_test
def test_colours_can_be_read(page: Page, server: FakeServer) -> None:
    server.decode = [(f" {step}", step) for step in range(1, 13)]  # Every hue, more or less.
    server.step_seconds = 0.0
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#at")).to_have_text("step 12 of 12")
    for scheme in "light", "dark":
        page.emulate_media(color_scheme=scheme)
        for what in (
            "#canvas .token",
            "#run",
            "label",
            "dt",
            "#runs thead th",
            "#branch-table td:last-child",
            "#status",
        ):
            contrast = min(page.locator(what).evaluate_all(CONTRAST))
            assert contrast >= 4.5, f"{what} has a contrast of {contrast:.1f} in {scheme} mode"


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


@browser_test
def test_a_phone_needs_no_sideways_scroll(page: Page, server: FakeServer) -> None:
    page.set_viewport_size(PHONE)
    page.reload()
    server.decode = [*server.decode, ("w" * 200, STEPS), ("\n", STEPS)]
    prompt(page).fill("p" * 300)
    run(page)
    page.get_by_text("Settings").first.click()
    expect(page.get_by_label("Seed")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    expect(page.locator("#runs [data-name=TPF]")).to_be_visible()
    right = page.locator("#runs td").evaluate_all(
        "cells => Math.max(...cells.map(c => c.getBoundingClientRect().right))"
    )
    assert right <= PHONE["width"]
