"""Chat templates that compute for ever, or make texts that fill memory, end with one error, and others go on."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.text import template_process
from lopa_ray.text.tokenizer import Tokenizer
from support.tokenizer_folders import CHATML

HI = [{"role": "user", "content": "hi"}]


def with_template(template: str) -> Tokenizer:
    tokenizer = Tokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer is not None
    tokenizer._pretrained.chat_template = template
    return tokenizer


SHARED = (
    "{% set a = namespace(x=(1,)) %}{% set b = namespace(x=(1,)) %}"
    "{% for i in range(60) %}{% set a.x = (a.x, a.x) %}{% set b.x = (b.x, b.x) %}{% endfor %}"
)
"""Two values of 60 levels, each of which has the one below it twice: 2^60 parts."""


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}",
        f"{SHARED}{{{{ a.x == b.x }}}}",
        f"{SHARED}{{{{ a.x in [b.x] }}}}",
        f"{SHARED}{{{{ [a.x, b.x]|sort }}}}",
        f"{SHARED}{{{{ {{a.x: 1}} }}}}",
        f"{SHARED}{{{{ raise_exception(a.x) }}}}",
        "{{ 5|round(-100000000) }}",
        "{{ 9 ** 99999999 }}",
    ],
)
def test_a_template_that_computes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(template_process, "RENDER_S", 0.3)
    with pytest.raises(
        CheckpointError, match=r"json: the chat template exceeds its limits \(it needs more than 0.3 s"
    ):
        with_template(template).render_chat(HI)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 12 }}",
        "{{ [1] * 1000000000000 }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ 'a'.ljust(width) }}",
        "{{ ('\t' * 4000000).expandtabs(16000) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_ended(template: str) -> None:
    with pytest.raises(CheckpointError, match="exceeds its limits"):
        with_template(template).render_chat(HI, variables={"width": 10**12})
    assert with_template(CHATML).render_chat(HI).text.endswith("hi<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_may_do_what_chats_need() -> None:
    template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ '%d. ' % ns.n }}"
        "{{ m.role|upper ~ ': ' + m.content.strip()|indent(2) }}{{ '=' * 10 }}{{ 2 * 3 }}"
        "{{ 'x'.center(5) }}{{ ['a', 1]|join('-') }}{{ '%s' % none }}{{ {'k': 'é'}|tojson }}{% endfor %}"
    )
    long = "word " * 100_000
    rendered = with_template(template).render_chat([{"role": "user", "content": long}]).text
    assert rendered == f'1. USER: {long.strip()}{"=" * 10}6  x  a-1None{{"k": "é"}}'


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(PromptError, match="variables that are no JSON"):
        with_template("{{ x }}").render_chat(HI, variables={"x": Path()})


def _render(answers: Any) -> None:
    answers.put(with_template("fork {{ messages[0].content }}").render_chat(HI).text)


def test_a_fork_renders_in_a_process_of_its_own() -> None:
    tokenizer = with_template("parent")
    tokenizer.render_chat(HI)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    fork = context.Process(target=_render, args=(answers,))
    fork.start()
    assert answers.get(timeout=120) == "fork hi"
    fork.join()
    assert tokenizer.render_chat(HI).text == "parent"
