"""Chat templates that loop for ever, or make texts that fill memory, end with one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.errors import CheckpointError
from lopa_ray.text import template_limits
from lopa_ray.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]


def with_template(template: str) -> Tokenizer:
    tokenizer = Tokenizer.from_pretrained(Path("lopa_ray/presets/demo-model").absolute())
    assert tokenizer is not None
    tokenizer._pretrained.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999)|map('upper')|list }}{% endfor %}",
        "{% macro f(n) %}{% for i in range(99) %}{{ f(n - 1) if n else '' }}{% endfor %}{% endmacro %}{{ f(9) }}",
    ],
    ids=["loops", "filter", "macro"],
)
def test_a_template_that_runs_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(template_limits, "RENDER_S", 0.2)
    with pytest.raises(CheckpointError, match=r"exceeds its limits \(it has run for"):
        with_template(template).render_chat(HI)


LONG = "{% set x = 'a' * 4000000 %}"
NESTED = "[[x, x, x], [x, x, x], [x, x, x]]"
DOUBLED = (
    "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    "template",
    [
        DOUBLED.replace("START", "'ab'").replace("STEP", "ns.x + ns.x"),
        DOUBLED.replace("START", "'ab'").replace("STEP", "ns.x ~ ns.x"),
        DOUBLED.replace("START", "['ab']").replace("STEP", "ns.x + ns.x"),
        DOUBLED.replace("START", "'aa'").replace("STEP", "ns.x|replace('a', 'aaaa')"),
        DOUBLED.replace("START", "'aa'").replace("STEP", "ns.x.replace('a', 'aaaa')"),
        DOUBLED.replace("START", "'aa'").replace("STEP", "[ns.x, ns.x]|join"),
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * 'a' }}",
        "{{ [1] * 1000000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '%999999999999d'|format(1) }}",
        "{{ 'a'.center(99999999999) }}",
        "{{ 'a'.ljust(width) }}",
        "{{ 'a'|center(99999999999) }}",
        "{{ 'a'|indent(99999999999, true) }}",
        "{{ [1]|batch(99999999999, 1)|list }}",
        "{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% macro f() %}{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}{% endmacro %}{{ f()|length }}",
        f"{LONG}{{{{ x|replace('a', x) }}}}",
        f"{LONG}{{{{ x.replace('a', x) }}}}",
        f"{LONG}{{{{ x|replace('a', new=x) }}}}",
        f"{LONG}{{{{ x.join(range(99999)|map('string')) }}}}",
        f"{LONG}{{{{ range(99999)|join(x) }}}}",
        f"{LONG}{{{{ [x, x, x, x, x, x, x, x, x]|join }}}}",
        f"{LONG}{{{{ [x] * 1000 }}}}",
        f"{LONG}{{{{ {NESTED} }}}}",
        f"{LONG}{{{{ {NESTED} ~ '' }}}}",
        f"{LONG}{{{{ {NESTED}|string }}}}",
        f"{LONG}{{{{ {NESTED}|tojson }}}}",
        "{{ {'a': {'b': 1}}|tojson(indent=99999999999) }}",
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    ],
)
def test_a_template_that_makes_too_much_is_ended(template: str) -> None:
    with pytest.raises(CheckpointError, match="exceeds its limits"):
        with_template(template).render_chat(HI, variables={"width": 10**12})


def test_a_template_may_do_what_chats_need() -> None:
    template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ '%d. ' % ns.n }}"
        "{{ m.role|upper ~ ': ' + m.content.strip()|indent(2) }}{{ '=' * 10 }}{{ 2 * 3 }}"
        "{{ 'x'.center(5) }}{{ ['a', 1]|join('-') }}{{ '%s' % none }}{{ {'k': 'é'}|tojson }}{% endfor %}"
    )
    long = "word " * 100_000
    rendered = with_template(template).render_chat([{"role": "user", "content": long}]).text
    assert rendered == f'1. USER: {long.strip()}{"=" * 10}6  x  a-1None{{"k": "é"}}'
