"""Structural tags: free text, in which a trigger is always followed by one of its structures."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.structural_tag import StructuralTag, tagged_text_automaton
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import SettingsError

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
CALLS = {
    "structures": [
        {"begin": '<call>f("', "schema": {"enum": ["x", "y"]}, "end": ")</call>"},
        {"begin": "<call>g(", "schema": NUMBER, "end": ")</call>"},
        {"begin": "#", "schema": NUMBER, "end": ";"},
    ],
    "triggers": ["<call>", "#"],
}
PIECES = [
    *'<>calf("xyg7)/#; ',
    "<call>",
    "<cal",
    'f("',
    '"x"',
    "g(",
    ")</call>",
    "g(5)</call>",
    "#3;",
    "text",
]


@cache
def automaton_of(tag: str) -> ByteAutomaton:
    return tagged_text_automaton(StructuralTag.parse(tag))[0]


def matches(tag: dict[str, Any], text: str) -> bool:
    automaton = automaton_of(json.dumps(tag))
    state = 0
    for byte in text.encode():
        state = automaton.transitions[state, byte]
    return bool(automaton.accepting[state])


def expected(text: str) -> bool:
    """By hand: from trigger to trigger, each followed by one of its structures as a whole."""
    while True:
        places = [(text.index(trigger), trigger) for trigger in CALLS["triggers"] if trigger in text]
        if not places:
            return True
        start, trigger = min(places)
        rest = text[start + len(trigger) :]
        spaces, digits = ("", " "), range(10)
        values = {
            "<call>": [f'f("{space}"{word}")</call>' for space in spaces for word in "xy"]
            + [f"g({space}{digit})</call>" for space in spaces for digit in digits],
            "#": [f"{space}{digit};" for space in spaces for digit in digits],
        }
        body = next((body for body in values[trigger] if rest.startswith(body)), None)
        if body is None:
            return False
        text = rest[len(body) :]


@pytest.mark.medium
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_triggers_are_followed_by_their_structures(text: str) -> None:
    assert matches(CALLS, text) == expected(text)


def test_without_triggers_the_whole_text_is_a_structure() -> None:
    tag = {"structures": [{"begin": "n=", "schema": NUMBER, "end": "!"}], "triggers": []}
    assert all(matches(tag, text) for text in ("n=3!", "n= 3!"))
    assert not any(matches(tag, text) for text in ("n=3", "3", "", "n=3!n=3!"))


def test_free_states_are_those_in_which_text_may_end() -> None:
    automaton, free = tagged_text_automaton(StructuralTag.parse(json.dumps(CALLS)))
    assert np.flatnonzero(automaton.accepting).tolist() == list(range(free))


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("no JSON", "guided_structural_tag"),
        (
            {"structures": [{"begin": "a", "schema": {}}], "triggers": ["b"]},
            "begins with none of the triggers",
        ),
        ({"structures": [{"begin": "ab", "schema": {}}], "triggers": ["a", "ab"]}, "part of another"),
        ({"structures": [{"begin": "a", "schema": {}}], "triggers": ["a", "b"]}, "no structure begins"),
    ],
)
def test_wrong_tags_are_refused(tag: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LopaSettings(guided_structural_tag=tag)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (
            {"structures": [{"begin": "a" * 40_000, "schema": {}}], "triggers": []},
            "characters outside of schemas",
        ),
        (
            {"structures": [{"begin": "a" * 5_000, "schema": NUMBER}], "triggers": ["a" * 5_000]},
            "shorten them",
        ),
        ({"structures": [{"begin": "a", "schema": NUMBER}] * 300, "triggers": []}, "at most 256"),
        (
            {
                "structures": [
                    {"begin": f"<{at}>", "schema": {"type": "string", "maxLength": 500}, "end": "."}
                    for at in range(12)
                ],
                "triggers": [f"<{at}>" for at in range(12)],
            },
            "more than 40000 states",
        ),
    ],
)
def test_what_is_too_large_is_refused(tag: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        matches(tag, "")


def test_a_structure_that_may_go_on_behind_its_end_is_refused() -> None:
    tag = {"structures": [{"begin": "a", "schema": {"type": "integer"}}], "triggers": ["a"]}
    with pytest.raises(SettingsError, match="may go on after their end"):
        matches(tag, "a1")
