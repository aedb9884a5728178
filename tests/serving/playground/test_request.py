"""What the playground sends, and what it says where that is refused."""

from __future__ import annotations

import re

from lopa_ray.decoding.decoders import DECODERS
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
def test_sends_only_what_was_set(page: Page, server: FakeServer) -> None:
    run(page)
    assert server.bodies[-1] == {
        "model": "demo",
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 3,
        "lopa": {"stream_canvas": True},
    }
    texts = {"Branches": "auto", "Confidence threshold": "0.8", "Block size": "16", "Temperature": "0.5"}
    for name, value in {**texts, "Top p": "0.9", "Seed": "7", "Max tokens": "96"}.items():
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
        "max_tokens": 96,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 3,
        "lopa": {**lopa, **choices, "stream_canvas": True},
    }
    newest = page.locator("#runs tbody tr").first
    expect(newest).to_contain_text("2+2=")
    expect(newest).to_contain_text("raw · branches auto")
    page.get_by_label("Decoder").select_option("d2f")
    for name in "Branches", "Lookahead", "Acceptance":
        expect(page.get_by_label(name)).to_be_disabled()
    run(page)
    assert "num_branches" not in server.bodies[-1]["lopa"], "the decoder has no such setting"
    expect(page.get_by_label("Branches")).to_have_value("")
    expect(page.get_by_label("Branches")).to_have_attribute("placeholder", "not used")
    expect(newest.locator("[data-name=Decoder]")).to_have_text("d2f")
    page.get_by_label("Decoder").select_option("lopa")
    expect(page.get_by_label("Branches")).to_have_value("auto")
    expect(page.get_by_label("Lookahead")).to_have_value("verified")


@phone_first
def test_fields_show_the_values_of_defaults(page: Page, server: FakeServer) -> None:
    def shown_defaults() -> dict[str, str]:
        texts = page.locator("#sides input").evaluate_all("all => all.map(i => [i.name, i.placeholder])")
        firsts = page.locator("#sides select").evaluate_all(
            "all => all.map(s => [s.name, s.options[0].text])"
        )
        return {**dict(texts), **dict(firsts)}

    defaults = shown_defaults()
    assert defaults["decoder"] == defaults["lookahead"] == "lopa (default)"
    assert (defaults["num_branches"], defaults["max_tokens"]) == ("4 (default)", "64 (default)")
    assert (defaults["top_p"], defaults["seed"]) == ("none (default)", "0 (default)")
    decoders = page.get_by_label("Decoder").locator("option").evaluate_all("all => all.map(o => o.value)")
    assert decoders == ["", *DECODERS]
    page.get_by_label("Decoder").select_option("block_diffusion")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Temperature").press("Tab")
    defaults = shown_defaults()
    assert (defaults["block_size"], defaults["confidence_threshold"]) == ("4 (default)", "0.85 (default)")
    assert (defaults["window_attention"], defaults["seed"]) == ("not used", "new each time")


def test_a_decoder_that_the_model_refuses_is_not_sent(page: Page, server: FakeServer) -> None:
    decoder = page.get_by_label("Decoder")
    decoder.select_option("renoising")
    for name in "Block size", "Temperature", "Seed":
        expect(page.get_by_label(name)).to_be_disabled()
    expect(decoder.locator("option:checked")).to_have_text("renoising (not available)")
    expect(page.locator(".field-note")).to_contain_text(
        "rules this decoder out, and nothing on this page changes that"
    )
    expect(page.locator(".field-note")).to_contain_text("ranking: got 'neg_entropy'")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_have_text("Not sent. This decoder is not available.")
    expect(decoder).to_have_attribute("aria-invalid", "true")
    assert not server.bodies
    decoder.select_option("")
    run(page)


def test_a_decoder_without_the_models_lookahead_is_sent_with_another(page: Page, server: FakeServer) -> None:
    server.settings = {"lookahead": "verified", "acceptance": 0.9}
    page.reload()
    page.get_by_text("Advanced").click()
    expect(page.get_by_label("Lookahead").locator("option:checked")).to_have_text("verified (default)")
    page.get_by_label("Decoder").select_option("editing")
    expect(page.locator(".field-note")).to_contain_text("Is sent with lookahead lopa, acceptance exact")
    expect(page.get_by_label("Lookahead").locator("option:checked")).to_have_text("not used")
    run(page)
    assert server.bodies[-1]["lopa"] == {
        "decoder": "editing",
        "lookahead": "lopa",
        "acceptance": "exact",
        "stream_canvas": True,
    }
    page.get_by_label("Decoder").select_option("")
    expect(page.locator(".field-note")).to_have_count(0)
    run(page)
    assert server.bodies[-1]["lopa"] == {"stream_canvas": True}


@desktop_first
def test_only_the_model_in_the_package_has_examples(page: Page, server: FakeServer) -> None:
    examples = page.get_by_role("group", name="Example prompts").get_by_role("button")
    expect(examples).to_have_count(6)
    note = page.get_by_text("solves arithmetic word problems like these")
    expect(note).to_be_visible()
    examples.nth(1).click()
    expect(prompt(page)).to_have_value(re.compile(r"^Sam has \$50"))
    server.models = ["org/other", "demo"]
    page.reload()
    page.get_by_text("Advanced").click()
    expect(page.get_by_label("Model")).to_have_value("demo")
    page.get_by_label("Model").select_option("org/other")
    expect(note).to_be_hidden()
    expect(page.get_by_label("Branches")).to_have_attribute("placeholder", "4 (default)")
    page.get_by_label("Model").select_option("demo")
    expect(note).to_be_visible()
    expect(examples).to_have_count(6)
