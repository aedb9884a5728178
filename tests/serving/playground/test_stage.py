"""The diffusing view: presets, noise, a token in detail, and results that are carried away."""

from __future__ import annotations

import json
import random
import re
from xml.etree import ElementTree

from support.fake_playground_server import STEPS, FakeServer
from support.playground_page import PHONE, Page, both_widths, browser_tests, compare, expect, run

pytestmark = browser_tests

VERIFIED = {"decoder": "lopa", "num_branches": 8, "lookahead": "verified", "stream_canvas": True}


def test_three_presets_and_the_first_compares(page: Page, server: FakeServer) -> None:
    opened = page.context.new_page()
    opened.goto(server.url)
    presets = opened.get_by_role("group", name="Preset")
    expect(presets.get_by_role("radio")).to_have_count(3)
    expect(opened.get_by_label("Model")).to_be_hidden()  # What is not in a preset is under Advanced.
    expect(opened.locator("#b-lookahead")).to_have_value("verified")
    opened.get_by_role("button", name="Run").click()
    expect(opened.get_by_role("status")).to_contain_text("Done")
    asked = sorted([body["lopa"] for body in server.bodies], key=len)
    assert asked == [{"decoder": "d2f", "stream_canvas": True}, VERIFIED]
    for name, relaxed in ("Exact", {}), ("Fast", {"acceptance": 0.5}):
        opened.get_by_role("radio", name=name).check()
        opened.get_by_role("button", name="Run").click()
        expect(opened.locator("#runs tbody tr")).to_have_count(3 + (name == "Fast"))
        assert server.bodies[-1]["lopa"] == {**VERIFIED, **relaxed}
    opened.reload()
    expect(opened.get_by_role("radio", name="Fast")).to_be_checked()
    opened.get_by_text("Advanced").click()
    opened.get_by_label("Branches").fill("4")
    opened.get_by_label("Branches").press("Tab")
    expect(presets.get_by_role("radio", checked=True)).to_have_count(0)


def test_a_decoder_without_verified_lookahead_is_compared_with_competing_branches(
    page: Page, server: FakeServer
) -> None:
    server.settings = {"decoder": "indel"}
    opened = page.context.new_page()
    opened.goto(server.url)
    expect(opened.locator("#b-num_branches")).to_have_value("8")
    expect(opened.locator("#b-lookahead")).to_be_disabled()
    opened.get_by_role("button", name="Run").click()
    expect(opened.get_by_role("status")).to_contain_text("Done")
    asked = sorted(body["lopa"].get("num_branches") for body in server.bodies)
    assert asked == [1, 8] and not any("lookahead" in body["lopa"] for body in server.bodies)


@both_widths
def test_a_token_shows_its_candidates_and_confidences(page: Page, server: FakeServer) -> None:
    server.entropy = True  # The confidences of the server's branches are negative; those of the page are not.
    run(page)
    branches = page.locator(".branch-table td:last-child").all_inner_texts()
    assert len(branches) == 3 and all(0 < float(text) < 1 for text in branches)
    token = page.get_by_role("dialog", name="Token")
    span = page.locator(".canvas > span").nth(7)
    (span.click if page.viewport_size == PHONE else span.hover)()
    expect(token).to_contain_text("position 7, decided in step 3")
    rows = [row.inner_text().split() for row in token.get_by_role("listitem").all()]
    assert rows == [["“3”", "0.95"], ["“3?”", "0.03"], ["“no”", "0.01"]]
    heights = [float(y) for y in re.findall(r",([\d.]+)", token.locator("polyline").get_attribute("points"))]
    assert len(heights) == 3 and heights == sorted(heights, reverse=True), "it became more confident"
    expect(token).to_be_in_viewport(ratio=1)
    page.locator(".canvas").press("ArrowRight")
    expect(token).to_contain_text("position 8")
    page.keyboard.press("Escape")
    expect(token).to_be_hidden()


def test_masks_are_noise_that_moves_unless_less_motion_is_asked_for(page: Page, server: FakeServer) -> None:
    server.pause_after_step = 2
    page.get_by_role("button", name="Run").click()
    mask = page.locator(".canvas .mask").first
    expect(mask).to_have_attribute("data-noise", re.compile("^[ ▒]+$"))
    assert mask.evaluate("mask => getComputedStyle(mask.parentNode.firstChild).animationName") == "none"
    expect(mask).to_have_attribute("aria-hidden", "true")
    page.emulate_media(reduced_motion="no-preference")
    for _ in range(2):
        expect(mask).not_to_have_attribute("data-noise", mask.get_attribute("data-noise"))
    page.get_by_label("Speed", exact=True).fill("4")
    expect(page.locator("#speed-value")).to_have_text("4 ×")
    server.pause_after_step = None
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")


def test_a_result_is_carried_by_a_link_and_saved_as_svg_and_json(page: Page, server: FakeServer) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    server.decode, server.quick_decoder = [("<&\n", 1), *server.decode], "d2f"
    compare(page)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#factor")).to_have_text("1.8 × fewer steps")
    page.get_by_role("button", name="Copy link to this result").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    link: str = page.evaluate("() => navigator.clipboard.readText()")
    assert link.startswith(f"{server.url}#result=") and len(link) < 8000
    other = page.context.new_page()
    for _ in range(2):  # It is there after a reload too.
        other.goto(link)
        expect(other.locator("#factor")).to_have_text("1.8 × fewer steps")
        assert other.locator("#lanes").inner_text() == page.locator("#lanes").inner_text()
        expect(other.locator("#b-decoder")).to_have_value("d2f")
        other.reload()
    assert len(server.bodies) == 2, "nothing is decoded again"
    other.locator(".canvas > span").first.click()
    expect(other.get_by_role("dialog", name="Token")).to_contain_text("0.95")
    other.goto(link[:-40])
    expect(other.get_by_role("alert")).to_contain_text("The link is damaged.")
    saved = []
    for name in "SVG", "JSON":
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {name}").click()
        saved.append(download.value.path().read_text())
    texts = [text.text for text in ElementTree.fromstring(saved[0]).iter("{http://www.w3.org/2000/svg}text")]
    assert [text[5:] for text in texts if text.startswith("step ")] == list("12345671234")
    assert texts.count("<&") == 11 and "<|endoftext|>" not in texts
    a, b = json.loads(saved[1])
    assert a["request"]["body"] in server.bodies and b["request"]["body"]["lopa"]["decoder"] == "d2f"
    *steps, answer, usage = a["events"]
    assert [event["lopa"]["canvas"]["step"] for event in steps] == list(range(1, 8))
    assert steps[-1]["lopa"]["canvas"]["cells"][1] == {"t": "Mia", "s": 1}
    assert answer["choices"][0]["text"] == server.text and usage["usage"]["prompt_tokens"] == 39
    server.decode = [("".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=90_000)), 1)]
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#factor")).to_have_text("1 step on both sides")
    page.get_by_role("button", name="Copy link to this result").click()
    expect(page.get_by_role("button", name="Too long for a link")).to_be_visible()
