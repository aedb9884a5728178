"""What is typed stays over a reload and the browser's Back, and a button that replaces it has a way back."""

from __future__ import annotations

import pytest

from support.fake_playground_server import FakeServer
from support.playground_page import (
    PROMPT,
    Page,
    browser_tests,
    desktop_first,
    expect,
    phone_first,
    prompt,
    run,
)

pytestmark = browser_tests


@desktop_first
def test_what_was_typed_stays_over_a_reload(page: Page, server: FakeServer) -> None:
    run(page)
    page.get_by_role("button", name="Continue the chat").click()
    prompt(page).fill("a draft\nof two lines ")
    page.get_by_text("System prompt and tools").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Tools, as a JSON list").fill("[")
    page.get_by_label("Branches").fill("8")
    page.get_by_label("Compare two settings").check()
    page.locator("#b-decoder").select_option("d2f")
    page.reload()
    expect(prompt(page)).to_have_value("a draft\nof two lines ")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(page.get_by_label("Tools, as a JSON list")).to_have_value("[")
    expect(page.get_by_role("list", name="Chat so far").get_by_role("listitem")).to_have_count(2)
    expect(page.locator("#a-num_branches")).to_have_value("8")
    expect(page.locator("#b-decoder")).to_have_value("d2f")
    other = page.context.new_page()
    other.goto(server.url)
    expect(prompt(other)).to_have_value(PROMPT)  # Each tab has a draft of its own.


def test_a_link_wins_until_it_is_edited(page: Page, server: FakeServer) -> None:
    prompt(page).fill("my own")
    page.goto(f"{server.url}#prompt=linked&seed=3")
    expect(prompt(page)).to_have_value("linked")
    expect(page.get_by_label("Seed")).to_have_value("3")
    prompt(page).fill("linked and edited")
    page.reload()
    expect(prompt(page)).to_have_value("linked and edited")
    page.go_back()
    expect(prompt(page)).to_have_value("my own")
    expect(page.get_by_label("Seed")).to_have_value("")
    page.go_forward()
    expect(prompt(page)).to_have_value("linked and edited")
    page.goto("about:blank")
    page.goto(f"{server.url}#prompt=linked&seed=3")
    expect(prompt(page)).to_have_value("linked")


@phone_first
def test_a_prompt_that_a_button_replaces_comes_back(page: Page, server: FakeServer) -> None:
    undo = page.get_by_role("button", name="Put my prompt back")
    examples = page.get_by_role("group", name="Example prompts").get_by_role("button")
    examples.nth(1).click()
    examples.nth(2).click()
    run(page)
    expect(undo).to_be_hidden()  # Nothing was lost: the prompts were examples.
    go_on, earlier = page.get_by_role("button", name="Continue the chat"), page.locator("#runs button").last
    for replace in examples.nth(3), go_on, earlier:
        prompt(page).fill("my own")
        page.get_by_label("Raw text").check()
        replace.click()
        use_again = page.get_by_role("button", name="Use again")
        if use_again.is_visible():
            use_again.click()
        expect(prompt(page)).not_to_have_value("my own")
        undo.click()
        expect(prompt(page)).to_have_value("my own")
        expect(prompt(page)).to_be_focused()
        expect(page.get_by_label("Raw text")).to_be_checked()
        expect(undo).to_be_hidden()
    page.reload()
    expect(prompt(page)).to_have_value("my own")


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_prompt_is_not_sent(page: Page, server: FakeServer, text: str) -> None:
    prompt(page).fill(text)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_have_text("Not sent. Type a prompt.")
    expect(prompt(page)).to_be_focused()
    assert not server.bodies
    prompt(page).press_sequentially("2")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(prompt(page)).not_to_have_attribute("aria-invalid", "true")
