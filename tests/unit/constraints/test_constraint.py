"""Structured output: whatever a model says and in whatever order, the answer matches; and nothing else is ruled out."""

from __future__ import annotations

import json
import pickle
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.byte_automaton import normalize_regex
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.constraints.constraint_spec import ConstraintSpec
from lopa_ray.constraints.token_bitmasks import unpack_bitmask
from lopa_ray.decoding.decoders import new_session, parse_decoder_settings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.given_tokens import length_through_end
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import may_decide_nothing
from support.settings_strategies import any_settings

jsonschema = pytest.importorskip("jsonschema")

MASK, EOS = VOCABULARY.mask_token_id, VOCABULARY.eos_token_id
PIECES = (
    [bytes([byte]) for byte in b'{}[]":,.- 0127abeflnrstu']
    + ["{\"", '":', '", "', "true", "null", "als", "12", "007", "ab", "aab", "é", "日", '"]', "}}", " \n", "\\"]
    + [b"\xc3", b"\xa9", b"\xe6\x97", b'\x00"', b"xyz"]
)  # fmt: skip
TEXTS = [piece.encode() if isinstance(piece, str) else piece for piece in PIECES]
TEXTS += [b""] * (VOCABULARY.size - len(TEXTS))
assert len(PIECES) <= min(EOS, MASK)

REGEXES = [
    r"(a|b)*ab",
    r"a|ab|aab",
    r"\d{1,3}(\.\d+)?",
    r"[^a]+",
    r"(é|日)+b?",
    r"^-?[a-f]{2,9}$",
    r".*",
    r"(ab?){7}",
    r"[\D\S]{2}[^\d\s]\W*",
    r"^[^]^$]{2}\$?\^*[\]$^]$",
]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "string"}, "e": {"type": "number"}}},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {}, "e": {"enum": ["a", None]}}, "required": ["b"]},
    {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "string"}, {"anyOf": [{"type": "null"}, {"type": "number"}]}]},
    {"type": "array"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[a-f]{2}\\d+$"},
    {"type": "integer", "minimum": -12, "exclusiveMaximum": 27},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}}},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 7}},
    {"type": "object"},
]  # fmt: skip


@cache
def constraint_of(spec: ConstraintSpec) -> Constraint:
    automaton = spec.automaton()
    assert automaton is not None
    return build_constraint(automaton, TEXTS, EOS)


def session(wanted: GenerationSettings, prompt: int = 3) -> DecodeSession:
    return new_session([1] * prompt, wanted, VOCABULARY, constraint_of(wanted.constraint_spec))


def spelled(tokens: list[int]) -> bytes:
    return b"".join(TEXTS[token] for token in tokens)


@pytest.mark.medium
@settings(max_examples=100)
@given(st.data())
def test_a_state_that_was_filled_step_by_step_is_that_of_the_canvas(data: st.DataObject) -> None:
    regex = data.draw(st.sampled_from(REGEXES))
    length, least = data.draw(st.integers(9, 14)), data.draw(st.integers(0, 9))
    constraint, span = constraint_of(ConstraintSpec(regex=regex)), range(2, 2 + length)
    canvas = [MASK] * length
    state = ConstraintState(constraint, [], MASK, span, least)
    while state.satisfiable and MASK in canvas:
        at = data.draw(st.sampled_from([at for at, token in enumerate(canvas) if token == MASK]))
        allowed = np.flatnonzero(unpack_bitmask(state.token_bitmask(2 + at), VOCABULARY.size)).tolist()
        canvas[at] = data.draw(st.sampled_from(allowed))
        state.fill(2 + at, canvas[at])
        fresh = ConstraintState(constraint, canvas, MASK, span, least)
        for position in span:
            assert state.token_bitmask(position) == fresh.token_bitmask(position)
            assert state.is_masked(position) == fresh.is_masked(position)


def test_a_constraint_survives_pickling() -> None:
    constraint = constraint_of(ConstraintSpec(regex=REGEXES[2]))
    twin = pickle.loads(pickle.dumps(constraint))
    for name in ("token_classes", "accepting"):
        assert (getattr(twin, name) == getattr(constraint, name)).all()
    assert (twin.transitions.dense() == constraint.transitions.dense()).all()
    states = [ConstraintState(c, [MASK, 3], MASK, range(4), 0) for c in (constraint, twin)]
    assert states[0].token_bitmask(0) == states[1].token_bitmask(0)


# Soundness


@st.composite
def any_wanted(draw: st.DrawFn, patterns: list[dict[str, Any]]) -> GenerationSettings:
    """Settings with a pattern, of an answer that has room for it."""
    decoder = draw(st.sampled_from(["lopa", "lopa", "fast_dllm", "vanilla", "block_diffusion"]))
    values = draw(any_settings(decoder)).given() | {
        "max_new_tokens": draw(st.integers(24, 40)),
        "min_tokens": draw(st.sampled_from([0, 0, 3])),
        "ignore_eos": False,
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        **draw(st.sampled_from(patterns)),
    }
    has_schedule = bool(values.pop("steps", None))
    values = {name: value for name, value in values.items() if value != "schedule"}
    wanted = parse_decoder_settings(values)
    if has_schedule and isinstance(wanted, FastDllmSettings):
        return wanted.replace(fill="schedule", steps=2 * wanted.num_blocks, relaxed_threshold=None)
    return wanted


MODELS = st.builds(
    FakeModel,
    seed=st.integers(0, 2**16),
    eos_probability=st.sampled_from([0.0, 0.05, 0.5]),
    levels=st.sampled_from([3, 1000]),
    probability_exponent=st.sampled_from([0.1, 1.0, 3.0]),
)


def decoded(wanted: GenerationSettings, model: FakeModel) -> str:
    """The answer's text. Steps decide something, and what is decided after EOS is EOS."""
    decode = session(wanted)
    while not decode.finished:
        plan = decode.plan()
        masks = decode.generated.count(MASK) + wanted.max_new_tokens - len(decode.generated)
        outcome = decode.advance(model.reports(plan))
        now = list(outcome.canvas)
        left = now.count(MASK) + wanted.max_new_tokens - len(now)
        assert left < masks or (left == masks and may_decide_nothing(decode, plan))
        assert decode.constraint is not None
        assert ConstraintState(
            decode.constraint, now, MASK, range(3, 3 + wanted.max_new_tokens), wanted.min_tokens
        ).satisfiable
    ids = decode.generated
    length = length_through_end(ids, (EOS,))
    end = len(ids) if length is None else ids.index(EOS)
    assert end >= wanted.min_tokens
    assert MASK not in ids[:end]
    assert set(ids[end:]) <= {EOS, MASK}
    if not wanted.stop_at_eos:
        assert MASK not in ids
    return spelled(ids[:end]).decode()


@pytest.mark.medium
@settings(max_examples=120)
@given(any_wanted([{"guided_regex": regex} for regex in REGEXES]), MODELS)
def test_answers_match_the_regex(wanted: GenerationSettings, model: FakeModel) -> None:
    assert wanted.guided_regex is not None
    assert re.fullmatch(wanted.guided_regex, decoded(wanted, model), re.ASCII)


@pytest.mark.medium
@settings(max_examples=100)
@given(any_wanted([{"guided_json": schema, "min_tokens": 0} for schema in SCHEMAS]), MODELS)
def test_answers_are_valid_json_under_the_schema(wanted: GenerationSettings, model: FakeModel) -> None:
    assert wanted.guided_json is not None
    jsonschema.validate(json.loads(decoded(wanted, model)), json.loads(wanted.guided_json))


@settings(max_examples=30)
@given(any_wanted([{"guided_choice": ["a", "ab", "a.b", "é(", "日"], "min_tokens": 0}]), MODELS)
def test_answers_are_one_of_the_choices(wanted: GenerationSettings, model: FakeModel) -> None:
    if wanted.guided_choice is not None:
        assert decoded(wanted, model) in wanted.guided_choice


def test_a_match_that_fills_all_positions_and_cannot_go_on_has_stopped() -> None:
    for regex, reason in (("(ab?){7}", "stop"), (".*", "length")):
        decode = session(D2FSettings(max_new_tokens=7, guided_regex=regex, min_tokens=7, block_size=3))
        while not decode.finished:
            decode.advance(FakeModel(3).reports(decode.plan()))
        assert (EOS in decode.generated, decode.finish_reason) == (False, reason)


def test_without_a_pattern_plans_have_no_bitmasks() -> None:
    decode = new_session([1], LopaSettings(max_new_tokens=9), VOCABULARY)
    plan = decode.plan()
    assert plan.token_bitmasks == () and all(branch.bitmask_ids == () for branch in plan.branches)


# Refusals


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"guided_regex": "(ab?){30}", "max_new_tokens": 13}, "has 15 tokens.*is 13: raise it to 15"),
        ({"guided_regex": "a", "max_new_tokens": 9, "min_tokens": 3}, "no answer of 3 to 9 tokens"),
        ({"guided_regex": "Z"}, "no text that this model's tokens can spell"),
        ({"guided_regex": r"(a)\1"}, "backreferences"),
        ({"guided_regex": r"a\bc"}, "word boundaries"),
        ({"guided_regex": "(^a|b)"}, "anchor inside"),
        ({"guided_regex": r"[^\s\S]"}, "a part can match no text"),
        ({"guided_regex": "[ab]*a[ab]{11}"}, "too large: .* states"),
    ],
)
def test_what_cannot_be_kept_is_refused(wanted: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        session(LopaSettings(**{"max_new_tokens": 20, **wanted}))


def test_brackets_that_stay_open_are_found_out_at_once() -> None:
    for regex in ("[" * 200_000, "[" * 200_000 + "\\"):
        assert normalize_regex(regex) == regex  # outlines-core refuses it
    for good in ("[$^]", r"[\]$]", r"\[\$", "[]^]"):
        assert normalize_regex(good) == good
    with pytest.raises(SettingsError, match="anchor inside"):
        normalize_regex("[a]$[b]")


def test_settings_that_contradict_a_pattern() -> None:
    with pytest.raises(SettingsError, match="guided_regex and guided_json"):
        LopaSettings(guided_regex="a", guided_json="{}")
    with pytest.raises(SettingsError, match="leave ignore_eos out"):
        LopaSettings(guided_choice=["a"], ignore_eos=True)
    with pytest.raises(SettingsError, match=r"Engine\.create_session"):
        new_session([1], LopaSettings(guided_regex="a"), VOCABULARY)
