"""Links that carry prompt and settings."""

from __future__ import annotations

from urllib.parse import parse_qs, quote, urlsplit

from support.fake_playground_server import TEXT, FakeServer
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


def link_of(page: Page) -> str:
    page.get_by_role("button", name="Copy link to this prompt").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    link: str = page.evaluate("() => navigator.clipboard.readText()")
    return link


@desktop_first
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
    page.get_by_label("Compare two settings").check()
    page.locator("#b-decoder").select_option("d2f")
    page.locator("#b-seed").fill("7")
    link = link_of(page)
    assert page.url == link and "sesame" not in link
    assert urlsplit(link).query == "", "servers see no fragments"
    carried = parse_qs(urlsplit(link).fragment)
    names = "prompt model system turns num_branches race b.decoder b.num_branches b.seed"
    assert carried.keys() == set(names.split())

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


@phone_first
def test_a_link_with_settings_alone_leaves_the_prompt_and_shows_the_settings(
    page: Page, server: FakeServer
) -> None:
    opened = page.context.new_page()
    opened.set_viewport_size(page.viewport_size)
    opened.goto(f"{server.url}#num_branches=8")
    expect(prompt(opened)).to_have_value(PROMPT)
    expect(opened.get_by_label("Branches")).to_have_value("8")
    expect(opened.get_by_label("Branches")).to_be_visible()


def test_a_link_to_another_model_shows_the_defaults_of_that_model(page: Page, server: FakeServer) -> None:
    server.models = ["demo", "org/other"]
    page.reload()
    expect(page.locator("#examples")).to_be_visible()
    page.goto(f"{server.url}#model=org%2Fother")
    expect(page.get_by_label("Model")).to_have_value("org/other")
    expect(page.locator("#examples")).to_be_hidden()  # Those are for the model demo.
    page.go_back()
    expect(page.get_by_label("Model")).to_have_value("demo")
    expect(page.locator("#examples")).to_be_visible()


def test_a_link_is_shown_though_the_form_changes_before_the_browser_reports_it(
    page: Page, server: FakeServer
) -> None:
    page.evaluate("() => { location.hash = 'prompt=linked'; document.dispatchEvent(new Event('input')); }")
    expect(prompt(page)).to_have_value("linked")


def test_what_the_server_does_not_have_is_said(page: Page, server: FakeServer) -> None:
    notes = page.locator(".field-note")
    opened = [
        f"{server.url}#model=other&decoder=nothing&lookahead=never",
        f"{server.url}#model=other&decoder=no",
    ]
    for at, link in enumerate(opened):
        page.goto(link)
        if at == 0:
            page.evaluate("() => { history.replaceState(null, ''); sessionStorage.clear(); }")
            page.reload()  # The link is read before the server's models are known, the next one afterwards.
            expect(notes).to_have_count(3)
        else:
            expect(notes).to_have_count(2)
        expect(notes.first).to_have_text('The server has no model "other", so demo is chosen.')
        expect(notes.nth(1)).to_contain_text("cannot be chosen here, so the default is used.")
    page.get_by_label("Decoder").select_option("d2f")
    expect(notes).to_have_count(1)
    run(page)
    assert server.bodies[-1]["model"] == "demo" and server.bodies[-1]["lopa"]["decoder"] == "d2f"
