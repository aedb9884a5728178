"""Text that can no longer change, out of a canvas that fills in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from lopa_ray.text.detokenizer import IncrementalDetokenizer

MASK, EOS = 256, 257
TEXTS = st.text(st.sampled_from("ab€é🙂\n\ufffd x"), max_size=24)


def decode(ids: list[int]) -> str:
    """Bytes as tokens: every character beyond ASCII spans several."""
    return bytes(token for token in ids if token < 256).decode("utf-8", errors="replace")


def canvases(ids: list[int], seed: int) -> list[list[int]]:
    """How a canvas may fill: positions in a random order, some of them together."""
    rng = random.Random(seed)
    order = list(range(len(ids)))
    rng.shuffle(order)
    canvas, seen = [MASK] * len(ids), [[MASK] * len(ids)]
    while order:
        for _ in range(min(len(order), rng.randint(1, 3))):
            at = order.pop()
            canvas[at] = ids[at]
        seen.append(list(canvas))
    return seen


def run(ids: list[int], seed: int, stop: list[str]) -> tuple[IncrementalDetokenizer, list[str], int]:
    detokenizer = IncrementalDetokenizer(decode, MASK, [EOS], stop)
    steps = canvases(ids, seed)
    deltas = [detokenizer.update(canvas, final=canvas == steps[-1]) for canvas in steps]
    return detokenizer, [delta.text for delta in deltas], sum(delta.tokens for delta in deltas)


@pytest.mark.medium
@given(
    TEXTS.map(lambda text: list(text.encode())) | st.lists(st.integers(0, 255), max_size=20),
    st.integers(0, 99),
)
def test_deltas_joined_are_the_text_or_what_bytes_are_that_are_none(ids, seed):
    detokenizer, texts, tokens = run(ids, seed, [])
    assert "".join(texts) == detokenizer.text == decode(ids)
    assert tokens == len(ids)


@given(
    TEXTS, st.integers(0, 99), st.lists(st.sampled_from(["a", "ab", "b€", "🙂", "aba", "x\n"]), max_size=3)
)
def test_a_stop_string_ends_the_text_before_it(text, seed, stop):
    detokenizer, texts, tokens = run(list(text.encode()), seed, stop)
    ends = [text.find(string) for string in stop if string in text]
    expected = text[: min(ends)] if ends else text
    assert "".join(texts) == detokenizer.text == expected
    assert detokenizer.stopped == bool(ends)
    assert tokens == len(expected.encode())


def test_of_stop_strings_within_each_other_the_one_that_is_whole_first_counts():
    for at_once in (True, False):
        detokenizer, ids = IncrementalDetokenizer(decode, MASK, [EOS], ["bcdef", "cd"]), list(b"abcdefg")
        for known in [7] if at_once else range(8):
            detokenizer.update(ids[:known] + [MASK] * (7 - known))
        assert (detokenizer.text, detokenizer.stopped) == ("ab", True)


def test_nothing_that_may_become_a_stop_string_is_given_out():
    detokenizer = IncrementalDetokenizer(decode, MASK, [EOS], ["\n\nQ:"])
    given_out = ""
    ids = list(b"one\n\nQ: two")
    for known in range(len(ids) + 1):
        given_out += detokenizer.update(ids[:known] + [MASK] * (len(ids) - known)).text
        assert "one".startswith(given_out)
    assert (given_out, detokenizer.stopped) == ("one", True)


def test_a_character_in_parts_waits_for_the_rest():
    detokenizer = IncrementalDetokenizer(decode, MASK, [EOS], [])
    euro = list("€".encode())
    assert detokenizer.update([97, *euro[:2], MASK]).text == "a"
    assert detokenizer.update([97, *euro]).text == "€"


def test_the_first_eos_ends_the_text():
    detokenizer = IncrementalDetokenizer(decode, MASK, [EOS], [])
    assert detokenizer.update([97, EOS, 98, EOS], final=True).text == "a"
    assert detokenizer.num_text_tokens([97, EOS, 98, EOS]) == 1
    open_ended = IncrementalDetokenizer(decode, MASK, [], [])
    assert open_ended.update([97, EOS, 98], final=True).text == "ab"


def test_a_decoder_that_changes_its_mind_is_refused():
    detokenizer = IncrementalDetokenizer(lambda ids: "".join(map(str, ids[::-1])), MASK, [EOS], [])
    detokenizer.update([1, MASK])
    with pytest.raises(ValueError, match="does not extend"):
        detokenizer.update([1, 2])
