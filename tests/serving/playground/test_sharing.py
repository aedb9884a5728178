"""Links that carry prompt and settings, and runs that stay over a reload."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, quote, urlsplit

from support.fake_playground_server import STEPS, TEXT, FakeServer
from support.playground_page import Page, both_widths, browser_test, expect, prompt, run, shown

STORED = "() => localStorage.getItem('lopa-runs-1')"


def link_of(page: Page) -> str:
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    link: str = page.evaluate("() => navigator.clipboard.readText()")
    return link


@browser_test
@both_widths
def test_a_link_carries_prompt_and_settings_and_no_key(page: Page, server: FakeServer) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    server.api_key = "sesame"
    page.get_by_label("API key").fill("sesame")
    run(page)
    page.get_by_role("button", name="Continue the chat").click()
    prompt(page).fill("a & b\n= <c> #1")
    page.get_by_text("System prompt and tools").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Branches").fill("8")
    page.get_by_label("Race").check()
    page.locator("#b-decoder").select_option("d2f")
    page.locator("#b-seed").fill("7")
    link = link_of(page)
    assert page.url == link and "sesame" not in link
    assert urlsplit(link).query == "", "servers see no fragments"
    carried = parse_qs(urlsplit(link).fragment)
    assert carried.keys() == {
        *(
            "prompt",
            "model",
            "system",
            "turns",
            "num_branches",
            "race",
            "b.decoder",
            "b.num_branches",
            "b.seed",
        )
    }

    other = page.context.new_page()
    other.goto(link)
    expect(other.get_by_label("Model")).to_have_value("")  # Another tab has no key.
    other.get_by_label("API key").fill("sesame")
    other.get_by_label("API key").press("Tab")
    expect(other.get_by_label("Model")).to_have_value("demo")
    server.bodies.clear()
    other.get_by_role("button", name="Run").click()
    expect(other.get_by_role("status")).to_contain_text("Both ran at the same time")
    by_decoder = {body["lopa"].get("decoder"): body for body in server.bodies}
    assert by_decoder[None]["lopa"]["num_branches"] == 8 and "max_tokens" not in by_decoder[None]
    assert by_decoder["d2f"]["seed"] == 7
    for body in server.bodies:
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert body["messages"][-1]["content"] == "a & b\n= <c> #1"
        assert body["messages"][2]["content"] == TEXT


@browser_test
def test_what_a_link_has_beyond_that_is_ignored(page: Page, server: FakeServer) -> None:
    hostile = quote("<img src=x onerror=alert(1)>")
    page.goto(f"{server.url}#prompt={hostile}&key=stolen&decoder=nothing&seed={hostile}&onclick=1&mode=raw")
    expect(prompt(page)).to_have_value("<img src=x onerror=alert(1)>")
    expect(page.get_by_label("API key")).to_have_value("")
    expect(page.get_by_label("Raw text")).to_be_checked()
    expect(page.get_by_label("Decoder")).to_have_value("")
    assert page.locator("img").count() == 0
    for turns in "{", "[{}]", '[{"role": "system", "content": ""}]', '[{"role": "user"}]':
        page.goto(f"{server.url}#turns={quote(turns)}")
        expect(page.get_by_role("alert")).to_contain_text("The link is damaged.")
    page.goto(f"{server.url}#elsewhere")
    expect(page.get_by_role("alert")).to_be_hidden()


@browser_test
@both_widths
def test_runs_stay_over_a_reload(page: Page, server: FakeServer) -> None:
    server.verified = True
    run(page)
    before = shown(page), page.locator("#runs tbody tr").inner_text(), page.locator(".stats").inner_text()
    slider = page.get_by_role("slider", name="Step")
    slider.fill("4")
    step = shown(page), page.locator(".branch-table").inner_text()
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Press Run to decode the prompt.")
    page.locator("#runs button").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator(".at")).to_have_text(f"step {STEPS} of {STEPS}")
    after = shown(page), page.locator("#runs tbody tr").inner_text(), page.locator(".stats").inner_text()
    assert after == before
    slider.fill("4")
    assert (shown(page), page.locator(".branch-table").inner_text()) == step
    page.get_by_role("button", name="Continue the chat").click()
    expect(prompt(page)).to_be_focused()
    page.get_by_role("button", name="Clear").click()
    page.reload()
    expect(page.locator("#history")).to_be_hidden()
    assert page.evaluate(STORED) is None


@browser_test
def test_kept_runs_are_bounded(page: Page, server: FakeServer) -> None:
    server.step_seconds = 0.0
    for seed in range(22):
        page.get_by_label("Seed").fill(str(seed))
        page.keyboard.press("Control+Enter")
        expect(page.locator("#runs tbody tr")).to_have_count(seed + 1)
    kept = json.loads(page.evaluate(STORED))
    assert [run["label"] for run in kept] == [f"seed {seed}" for seed in range(21, 1, -1)]
    # A run that is too long keeps its last step.
    server.decode = [("x" * 500, step) for step in range(1, 700)]
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("status")).to_contain_text("Done", timeout=60_000)
    assert len(json.loads(page.evaluate(STORED))[0]["frames"]) == 1
    assert len(page.evaluate(STORED)) < 2_000_000


@browser_test
def test_a_full_or_forbidden_storage_stops_nothing(page: Page, server: FakeServer) -> None:
    page.evaluate("""() => {
      const set = Storage.prototype.setItem;
      Storage.prototype.setItem = function (name, text) {
        if (text.length > 5000) throw new DOMException("full", "QuotaExceededError");
        set.call(this, name, text);
      };
    }""")
    for rows in 1, 2, 3:
        run(page)
        expect(page.locator("#runs tbody tr")).to_have_count(rows)
    assert 1 <= len(json.loads(page.evaluate(STORED))) < 3
    page.add_init_script("""for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, { get() { throw new Error("no"); } });
    }""")
    page.reload()
    run(page)
