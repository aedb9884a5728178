"""Constraints over answers with given tokens: the whole answer matches, and EOS in a hole ends the hole."""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.constraints.constraint_spec import ConstraintSpec
from lopa_ray.constraints.token_bitmasks import TokenBitmasks, unpack_bitmask
from lopa_ray.decoding.decoders import DECODERS, new_session, parse_decoder_settings
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.errors import SettingsError
from support.fake_model import VOCABULARY, FakeModel
from support.given_answers import session_with
from support.settings_strategies import EOS, MASK, any_settings

pytestmark = pytest.mark.medium

TEXTS = [b"a", b"b", b"ab", b"c", b"\xc3", b"\xa9"] + [b""] * (VOCABULARY.size - 6)
A, C = 0, 3
ALPHABET = [*range(6), EOS]


@cache
def constraint_of(regex: str) -> Constraint:
    automaton = ConstraintSpec(regex=regex).automaton()
    assert automaton is not None
    return build_constraint(automaton, TEXTS, EOS)


def text_of(answer: tuple[int, ...], holes: tuple[range, ...], min_tokens: int) -> str | None:
    """The text of an answer that is decided as a whole; None if a token stands behind an end, or an end too early."""
    text, at = b"", 0
    limits = [*((hole.start, hole.stop) for hole in holes), (end_of_given(holes), len(answer))]
    for start, stop in limits:
        text += b"".join(TEXTS[token] for token in answer[at:start])
        hole = answer[start:stop]
        words = hole[: hole.index(EOS)] if EOS in hole else hole
        if set(hole[len(words) :]) - {EOS} or (EOS in hole and start + len(words) < min_tokens):
            return None
        text += b"".join(TEXTS[token] for token in words)
        at = stop
    return text.decode(errors="replace")


def end_of_given(holes: tuple[range, ...]) -> int:
    """The place behind the token that follows the last hole; 0 where nothing is given."""
    return holes[-1].stop + 1 if holes else 0


@pytest.mark.parametrize("regex", ["(ab)*c(ab)*", "a{2,4}cb?", "(a|b)+ca", "c(a|b){1,2}", "(a|é)*c?é*"])
@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_bitmasks_are_exactly_the_tokens_that_leave_a_way_to_a_match(regex: str, min_tokens: int) -> None:
    constraint = constraint_of(regex)
    draw = np.random.default_rng(0)
    for holes in ((), (range(0, 3),), (range(1, 3),), (range(0, 1), range(2, 4))):
        span = range(3, 9) if holes else range(3, 7)
        last = end_of_given(holes)
        free = [at for hole in holes for at in hole] + list(range(last, len(span)))
        pinned = {at: C if at == last - 1 else A for at in range(len(span)) if at not in free}
        answers = []
        for tokens in itertools.product(ALPHABET, repeat=len(free)):
            answer = dict(zip(free, tokens, strict=True)) | pinned
            whole = tuple(answer[at] for at in range(len(span)))
            text = text_of(whole, holes, min_tokens)
            if text is not None and re.fullmatch(regex, text):
                answers.append(whole)
        for _ in range(25):
            source = (
                answers[draw.integers(len(answers))]
                if answers and draw.random() < 0.8
                else tuple(draw.choice(ALPHABET, len(span)).tolist())
            )
            canvas = [
                pinned.get(at, token if draw.random() < 0.4 else MASK) for at, token in enumerate(source)
            ]
            state = ConstraintState(constraint, canvas, MASK, span, min_tokens, holes)
            left = [a for a in answers if all(c in (MASK, t) for c, t in zip(canvas, a, strict=True))]
            assert state.satisfiable == bool(left)
            for at, position in enumerate(span):
                if canvas[at] == MASK:
                    expected = {answer[at] for answer in left}
                    allowed = np.flatnonzero(
                        unpack_bitmask(state.token_bitmask(position), VOCABULARY.size)
                    ).tolist()
                    assert set(allowed) == expected
                    assert {token for token in ALPHABET if state.allows(position, token)} == expected
                    assert state.is_forced(position) == (len(expected) == 1)
                    if expected:
                        token = allowed[0]
                        state.fill(position, token)
                        fresh = ConstraintState(
                            constraint,
                            [*canvas[:at], token, *canvas[at + 1 :]],
                            MASK,
                            span,
                            min_tokens,
                            holes,
                        )
                        assert all(
                            state.token_bitmask(p) == fresh.token_bitmask(p) for p in span if p > position
                        )
                        state = ConstraintState(constraint, canvas, MASK, span, min_tokens, holes)


HOLES_AND_PATTERNS = [
    name
    for name, decoder in DECODERS.items()
    if decoder.takes("given_parts") and decoder.takes("guided_regex")
]


@pytest.mark.parametrize("decoder", HOLES_AND_PATTERNS)
@settings(max_examples=40)
@given(st.data())
def test_the_whole_answer_matches_given_tokens_included(decoder: str, data: st.DataObject) -> None:
    regex = "(a|b)*c(a|b)*"
    values = data.draw(any_settings(decoder)).given()
    length = data.draw(st.integers(4, 12))
    values |= {"max_new_tokens": length, "min_tokens": data.draw(st.integers(0, 4)), "ignore_eos": False}
    values |= {"guided_regex": regex, "logit_bias": {}} | ({"steps": None} if "steps" in values else {})
    if values.get("fill") == "schedule":
        del values["fill"]
    wanted = parse_decoder_settings(values)
    at = data.draw(st.integers(0, length - 2))
    session = session_with([1, 2], wanted, {at: C}, constraint=constraint_of(regex))
    model = FakeModel(seed=data.draw(st.integers(0, 99)), eos_probability=0.2)
    while not session.finished:
        session.advance(model.reports(session.plan()))
    text = session.given.whole_text(session.generated, session.end_token_ids)
    words = text[: text.index(EOS)] if EOS in text else text
    assert re.fullmatch(regex, b"".join(TEXTS[token] for token in words).decode())
    if session.given.tokens:
        assert session.generated[at] == C


def test_what_is_given_and_what_has_to_match_may_exclude_each_other() -> None:
    wanted = parse_decoder_settings({"max_new_tokens": 6, "guided_regex": "(a|b)*"})
    with pytest.raises(SettingsError, match="no answer with what is given matches guided_regex") as caught:
        new_session([1], wanted, VOCABULARY, constraint_of("(a|b)*"), GivenTokens({2: C}))
    assert caught.value.setting == "given_parts"


def test_a_hole_may_be_empty() -> None:
    """The pattern leaves nothing for the hole: its first position is an end."""
    wanted = parse_decoder_settings({"max_new_tokens": 5, "guided_regex": "c", "num_branches": 1})
    session = new_session([1], wanted, VOCABULARY, constraint_of("c"), GivenTokens({2: C}))
    while not session.finished:
        session.advance(FakeModel().reports(session.plan()))
    assert session.generated[:4] == [EOS, EOS, C, EOS]
    assert session.finish_reason == "stop"


def test_a_block_that_begins_in_the_prompt_has_bitmasks_for_the_answer_alone() -> None:
    answer, prompt = (MASK, MASK, A, MASK), 3
    state = ConstraintState(
        constraint_of("(a|b)*c?"), answer, MASK, range(prompt, prompt + len(answer)), 0, (range(2),)
    )
    assert TokenBitmasks().add(state, range(prompt + len(answer)))[: prompt + 3] == (-1, -1, -1, 0, 0, -1)
