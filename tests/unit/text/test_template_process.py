"""Chat templates that compute for ever, or make texts that fill memory, end with one error, and others go on."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.text import template_process
from support.tokenizer_folders import CHATML, with_template

pytestmark = pytest.mark.medium

HI = [{"role": "user", "content": "hi"}]


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
        f"{SHARED}{{{{ raise_exception(a.x) }}}}",
        "{{ 9 ** 99999999 }}",
    ],
)
def test_a_template_that_computes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: str
) -> None:
    monkeypatch.setattr(template_process, "RENDER_S", 0.3)
    with pytest.raises(
        CheckpointError, match=r"json: the chat template exceeds its limits \(it needs more than 0.3 s"
    ):
        with_template(tmp_path, template).render_chat(HI)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 12 }}",
        "{{ 'a'.ljust(width) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_ended(tmp_path: Path, template: str) -> None:
    with pytest.raises(CheckpointError, match="exceeds its limits"):
        with_template(tmp_path, template).render_chat(HI, variables={"width": 10**12})
    assert (
        with_template(tmp_path, CHATML).render_chat(HI).text.endswith("hi<|im_end|>\n<|im_start|>assistant\n")
    )


def test_a_template_may_do_what_chats_need(tmp_path: Path) -> None:
    template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ '%d. ' % ns.n }}"
        "{{ m.role|upper ~ ': ' + m.content.strip()|indent(2) }}{{ '=' * 10 }}{{ 2 * 3 }}"
        "{{ 'x'.center(5) }}{{ ['a', 1]|join('-') }}{{ '%s' % none }}{{ {'k': 'é'}|tojson }}{% endfor %}"
    )
    long = "word " * 100_000
    rendered = with_template(tmp_path, template).render_chat([{"role": "user", "content": long}]).text
    assert rendered == f'1. USER: {long.strip()}{"=" * 10}6  x  a-1None{{"k": "é"}}'


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="variables that are no JSON"):
        with_template(tmp_path, "{{ x }}").render_chat(HI, variables={"x": Path()})


def _render(folder: Path, answers: Any) -> None:
    answers.put(with_template(folder, "fork {{ messages[0].content }}").render_chat(HI).text)


def test_a_fork_renders_in_a_process_of_its_own(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, "parent")
    tokenizer.render_chat(HI)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    fork = context.Process(target=_render, args=(tmp_path, answers))
    fork.start()
    assert answers.get(timeout=120) == "fork hi"
    fork.join()
    assert tokenizer.render_chat(HI).text == "parent"
