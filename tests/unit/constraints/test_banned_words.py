"""Words that no answer contains: the answers that spell none of them are left, in whatever order they fill."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from lopa_ray.constraints import banned_words
from lopa_ray.constraints.banned_words import ban_words, restrict
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.constraints.token_bitmasks import unpack_bitmask
from lopa_ray.errors import SettingsError

pytestmark = pytest.mark.medium

TEXTS = [b"", b"", b"a", b"b", b" ", b"ab", b" a", b"ba", b"bab", b" ab"]
"""What tokens spell; 0 is the mask, 1 is EOS."""
MASK, EOS = 0, 1


def spells(answer: tuple[int, ...], words: list[str]) -> bool:
    """By brute force: whether a run of whole tokens is one of the words, or that behind a space."""
    wanted = {prefix + word.encode() for word in words for prefix in (b"", b" ")}
    runs = itertools.combinations(range(len(answer) + 1), 2)
    return any(
        b"".join(TEXTS[token] for token in answer[start:stop]) in wanted
        for start, stop in runs
        if all(TEXTS[token] for token in answer[start:stop])
    )


def check(constraint: Constraint, good: list[tuple[int, ...]], length: int) -> None:
    """What a constraint allows at the masks of random canvases is what `good` answers have there."""
    draw = np.random.default_rng(0)
    span = range(3, 3 + length)
    for _ in range(60):
        source = (
            good[draw.integers(len(good))] if draw.random() < 0.7 else draw.integers(1, len(TEXTS), length)
        )
        canvas = [int(token) if draw.random() < 0.5 else MASK for token in source]
        state = ConstraintState(constraint, canvas, MASK, span, 0)
        left = [answer for answer in good if all(c in (MASK, t) for c, t in zip(canvas, answer, strict=True))]
        assert state.satisfiable == bool(left)
        for at, position in enumerate(span):
            if canvas[at] == MASK and left:
                bits = unpack_bitmask(state.token_bitmask(position), len(TEXTS))
                assert set(np.flatnonzero(bits)) - {MASK} == {answer[at] for answer in left}


@pytest.mark.parametrize("words", [["a"], ["aba", "bb"], ["a b", "b"], ["abab", "ba"]])
def test_exactly_the_answers_without_the_words_are_left(words: list[str]) -> None:
    answers = itertools.product(range(1, len(TEXTS)), repeat=4)
    good = [answer for answer in answers if not spells(answer, words)]
    check(ban_words(words, TEXTS, EOS), good, 4)


@pytest.mark.parametrize("regex", ["(ab| )*", "a?b{1,3}a?", "[ab ]+"])
@pytest.mark.parametrize("words", [["ab"], ["b a", "bb"]])
def test_beside_a_pattern_both_are_kept(regex: str, words: list[str]) -> None:
    automaton = ByteAutomaton.from_regex(regex)
    pattern = build_constraint(automaton, TEXTS, EOS)
    good = []
    for answer in itertools.product(range(1, len(TEXTS)), repeat=4):
        length = answer.index(EOS) if EOS in answer else 4
        text = b"".join(TEXTS[token] for token in answer[:length]).decode()
        ended = set(answer[length:]) <= {EOS}
        if ended and re.fullmatch(regex, text) and not spells(answer[:length], words):
            good.append(answer)
    assert good
    check(restrict(pattern, ban_words(words, TEXTS, EOS)), good, 4)


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = ByteAutomaton.from_regex("(ab?){3}")
    pattern = build_constraint(automaton, TEXTS, EOS)
    bans = ban_words(["ab"], TEXTS, EOS)
    monkeypatch.setattr(banned_words, "MAX_CELLS", 10)
    with pytest.raises(SettingsError, match="bad_words: together with the pattern"):
        restrict(pattern, bans)
    with pytest.raises(SettingsError, match="too many ways to spell"):
        ban_words(["a" * 40], [b"a" * size for size in range(12)], EOS)
