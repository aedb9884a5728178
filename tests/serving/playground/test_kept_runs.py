"""Runs that this browser keeps: after a reload, in all of its tabs, and as far as there is room."""

from __future__ import annotations

import json

from support.fake_playground_server import STEPS, FakeServer
from support.playground_page import (
    PROMPT,
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

STORED = "() => localStorage.getItem('lopa-runs-1')"


@desktop_first
def test_runs_stay_over_a_reload(page: Page, server: FakeServer) -> None:
    server.verified = True
    run(page)
    before = shown(page), page.locator("#runs tbody tr").inner_text(), page.locator(".stats").inner_text()
    slider = page.get_by_role("slider", name="Step")
    slider.fill("4")
    step = shown(page), page.locator(".step-card").inner_text()
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Press Run to decode the prompt.")
    page.locator("#runs button").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")
    after = shown(page), page.locator("#runs tbody tr").inner_text(), page.locator(".stats").inner_text()
    assert after == before
    slider.fill("4")
    assert (shown(page), page.locator(".step-card").inner_text()) == step
    page.get_by_role("button", name="Continue the chat").click()
    expect(prompt(page)).to_be_focused()
    page.get_by_role("button", name="Clear").click()
    page.reload()
    expect(page.locator("#history")).to_be_hidden()
    assert page.evaluate(STORED) is None


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


def test_a_full_or_forbidden_storage_stops_nothing(page: Page, server: FakeServer) -> None:
    page.evaluate("""() => {
      const set = Storage.prototype.setItem;
      Storage.prototype.setItem = function (name, text) {
        if (text.length > 20000) throw new DOMException("full", "QuotaExceededError");
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


@phone_first
def test_a_kept_run_shows_what_it_was_asked_and_asks_it_again(page: Page, server: FakeServer) -> None:
    long = "How many pens? " * 20
    page.get_by_text("System prompt and tools").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Branches").fill("8")
    page.get_by_label("Decoder").select_option("lopa")
    run(page)
    page.get_by_role("button", name="Continue the chat").click()
    prompt(page).fill(long)
    run(page)
    asked = page.locator("#asked")
    expect(asked).to_be_hidden()  # The form still has it.
    sent = server.bodies[-1]
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Raw text").check()
    prompt(page).fill("raw")
    page.get_by_label("Branches").fill("")
    run(page)
    page.reload()
    rows = page.locator("#runs tbody tr")
    rows.nth(1).get_by_role("button").click()
    expect(asked.locator("#asked-prompt")).to_have_text(long.strip())
    expect(asked.locator("#asked-system")).to_have_text("System prompt: Be brief.")
    expect(asked.locator("#asked-turns")).to_contain_text("2 messages of a chat")
    asked.get_by_role("button", name="Use again").click()
    run(page)
    assert server.bodies[-1] == sent
    rows.nth(1).get_by_role("button").click()
    expect(asked.locator("#asked-prompt")).to_have_text("raw")
    expect(asked.locator("#asked-system")).to_be_hidden()
    asked.get_by_role("button", name="Use again").click()
    expect(page.get_by_label("Raw text")).to_be_checked()
    expect(page.get_by_label("Branches")).to_have_value("")


def test_tabs_share_the_kept_runs(page: Page, server: FakeServer) -> None:
    run(page)
    other = page.context.new_page()
    other.goto(f"{server.url}#race=0")
    rows, others = (tab.locator("#runs tbody tr") for tab in (page, other))
    expect(others).to_have_count(1)
    prompt(other).fill("from the other tab")
    run(other)
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("from the other tab")
    prompt(page).fill("from the first tab")
    run(page)
    expect(others).to_have_count(3)
    prompts = [kept["prompt"] for kept in json.loads(page.evaluate(STORED))]
    assert prompts == ["from the first tab", "from the other tab", PROMPT]
    page.get_by_role("button", name="Clear").click()
    expect(others).to_have_count(0)


def test_an_entry_that_is_no_run_is_ignored(page: Page, server: FakeServer) -> None:
    run(page)
    page.evaluate("""() => {
      const [run] = JSON.parse(localStorage.getItem("lopa-runs-1"));
      const wrong = [{}, null, 7, { ...run, id: "a", frames: 3 }, { ...run, id: "b", text: null },
        { ...run, id: "c", calls: null }, { ...run, id: "d", messages: 1 }, { ...run, id: "e", settings: null }];
      localStorage.setItem("lopa-runs-1", JSON.stringify([...wrong, run]));
    }""")
    page.reload()
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(1)
    rows.get_by_role("button").click()
    expect(page.locator("#at")).to_have_text(f"step {STEPS} of {STEPS}")
    run(page)
    assert len(json.loads(page.evaluate(STORED))) == 2
    for text in "{", "{}", "null", "7":
        page.evaluate("text => localStorage.setItem('lopa-runs-1', text)", text)
        page.reload()
        expect(page.get_by_label("Model")).to_have_value("demo")
        expect(page.locator("#history")).to_be_hidden()
    run(page)
    assert len(json.loads(page.evaluate(STORED))) == 1
