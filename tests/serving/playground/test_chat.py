"""Chats of several turns, system prompts, tools, reasoning, and the answer as text."""

from __future__ import annotations

import json
from typing import Any

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

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def open_context(page: Page) -> None:
    page.get_by_text("System prompt and tools").click()


def sent(server: FakeServer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.bodies[-1]["messages"]
    return messages


@desktop_first
def test_the_answer_is_text_that_can_be_copied(page: Page, server: FakeServer) -> None:
    answer = page.locator(".answer-card")
    expect(answer).to_be_hidden()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    run(page)
    expect(answer.locator(".answer")).to_be_hidden()  # The canvas shows it.
    copy = answer.get_by_role("button", name="Copy")
    copy.click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == TEXT.rstrip()
    # Pages of other machines over HTTP have no such clipboard.
    page.evaluate("""() => {
      Object.defineProperty(navigator, "clipboard", { value: undefined });
      document.addEventListener("copy", () => (window.copied = getSelection().toString()));
    }""")
    run(page)
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => window.copied") == TEXT.rstrip()
    expect(page.locator("body > textarea")).to_have_count(0)


@phone_first
def test_a_second_turn_follows_the_first(page: Page, server: FakeServer) -> None:
    open_context(page)
    page.get_by_label("System prompt").fill("Be brief.")
    run(page)
    system = {"role": "system", "content": "Be brief."}
    first = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": TEXT}]
    assert sent(server) == [system, first[0]]
    page.get_by_role("button", name="Continue the chat").click()
    turns = page.get_by_role("list", name="Chat so far").get_by_role("listitem")
    expect(turns).to_have_count(2)
    expect(prompt(page)).to_be_focused()
    expect(prompt(page)).to_have_value("")
    prompt(page).fill("And with 7 boxes?")
    run(page)
    assert sent(server) == [system, *first, {"role": "user", "content": "And with 7 boxes?"}]
    page.get_by_role("button", name="New chat").click()
    expect(turns).to_have_count(0)
    expect(prompt(page)).to_be_focused()
    run(page)
    assert sent(server) == [system, {"role": "user", "content": "And with 7 boxes?"}]
    # An earlier run brings its system prompt, unless another one is there.
    for text, kept in ("", "Be brief."), ("Be long.", "Be long."):
        page.get_by_label("System prompt").fill(text)
        page.locator("#runs button").last.click()
        page.get_by_role("button", name="Continue the chat").click()
        expect(page.get_by_label("System prompt")).to_have_value(kept)
        expect(turns).to_have_count(2)


def test_raw_text_has_neither_turns_nor_a_system_prompt(page: Page, server: FakeServer) -> None:
    open_context(page)
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Raw text").check()
    expect(page.get_by_label("System prompt")).to_be_hidden()
    run(page)
    assert server.bodies[-1]["prompt"] == PROMPT and "messages" not in server.bodies[-1]
    expect(page.get_by_role("button", name="Continue the chat")).to_be_hidden()


@phone_first
def test_calls_and_reasoning_are_shown_and_results_go_back(page: Page, server: FakeServer) -> None:
    server.text, server.reasoning = "", "Six times eight.\n<i>Then</i> less."
    server.calls = [("add", '{"a": 48, "b": -15}'), ("<b>stop</b>", '{"cut": ')]
    open_context(page)
    page.get_by_label("Tools, as a JSON list").fill(json.dumps(TOOLS))
    run(page)
    assert server.bodies[-1]["tools"] == TOOLS
    calls = page.get_by_role("list", name="Tool calls").get_by_role("listitem")
    assert calls.nth(0).inner_text() == 'add\n{\n  "a": 48,\n  "b": -15\n}'
    assert calls.nth(1).inner_text() == '<b>stop</b>\n{"cut": '
    reasoning = page.locator(".reasoning")
    reasoning.get_by_text("Reasoning").click()
    assert reasoning.locator(".text").inner_text() == server.reasoning
    expect(page.get_by_role("button", name="Copy answer")).to_be_hidden()

    page.get_by_role("button", name="Continue the chat").click()
    expect(page.get_by_label("Result of <b>stop</b>")).to_be_visible()
    expect(page.get_by_label("Result of add")).to_be_focused()
    page.get_by_label("Result of add").fill("33")
    server.calls = []
    run(page)
    _, answer, *results = sent(server)
    assert answer["content"] is None and "reasoning_content" not in answer
    called = [call["function"] for call in answer["tool_calls"]]
    assert called[0] == {"name": "add", "arguments": '{"a": 48, "b": -15}'}
    assert results == [
        {"role": "tool", "tool_call_id": "call-0", "content": "33"},
        {"role": "tool", "tool_call_id": "call-1", "content": ""},
    ]


def test_tools_that_are_no_list_are_not_sent(page: Page, server: FakeServer) -> None:
    open_context(page)
    tools = page.get_by_label("Tools, as a JSON list")
    for text, message in [("[{", "Not sent. This is not JSON"), ("{}", "Not sent. Allowed: a list of tools")]:
        tools.fill(text)
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text(message)
        expect(tools).to_have_attribute("aria-invalid", "true")
    assert not server.bodies


def test_markup_in_chats_stays_text(page: Page, server: FakeServer) -> None:
    server.text = server.reasoning = "<img src=x onerror=alert(1)></p><script>alert(1)</script>"
    server.calls = [(server.text, server.text)]
    prompt(page).fill(server.text)
    run(page)
    page.get_by_role("button", name="Continue the chat").click()
    page.reload()
    page.locator("#runs button").click()
    assert page.locator("img, body script").count() == 0
    assert page.locator(".answer").inner_text() == server.text
    expect(page.locator(".calls pre")).to_have_text(server.text)
