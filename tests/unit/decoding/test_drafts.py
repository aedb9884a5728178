"""Decoders that replace decided tokens begin with a draft of the answer, and revise it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS, new_session, parse_decoder_settings
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from lopa_ray.scheduling.journal import Journal
from support.context_model import ContextModel
from support.fake_model import VOCABULARY, FakeModel
from support.given_answers import GIVEN, session_with
from support.settings_strategies import EOS, FAKE_MODELS, MASK, PROMPTS, any_settings

REVISING = [
    name for name, one in DECODERS.items() if one.fills_masks and name in ("editing", "indel", "dmax")
]
REVISING.append("multi_block")
EVERY_DECODER = pytest.mark.parametrize("decoder", REVISING)
TOKENS = st.integers(0, VOCABULARY.size - 1)


def drafted(wanted: GenerationSettings, draft: list[int]) -> GenerationSettings:
    """The same settings with as much of a draft as they have room for, and without an end that comes too early."""
    tokens = [0 if token == EOS and at < wanted.min_tokens else token for at, token in enumerate(draft)]
    return wanted.replace(draft=tokens[: wanted.max_new_tokens])


@st.composite
def requests(draw: st.DrawFn, decoder: str) -> tuple[DecodeSession, FakeModel]:
    """A request with a draft, and perhaps given tokens, and its model."""
    wanted = draw(any_settings(decoder).filter(lambda one: "draft" not in one.refused))
    wanted = drafted(wanted, draw(st.lists(TOKENS, min_size=1, max_size=40)))
    return session_with(draw(PROMPTS), wanted, draw(GIVEN)), draw(FAKE_MODELS)


@pytest.mark.medium
@EVERY_DECODER
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_token_of_a_draft_is_scored_before_it_is_final(decoder, data):
    session, model = data.draw(requests(decoder))
    first, draft, journal = len(session.prompt), session.draft, Journal(session)
    scored: set[int] = set()
    states = []
    while not session.finished:
        plan = session.plan()
        ids = dict(enumerate(plan.input_ids(plan.branches[0]), plan.start - first))
        # A position is first scored with the draft's token in place.
        new = {position - first for position in plan.branches[0].scored} - scored
        if decoder != "indel":  # which moves tokens
            assert all(ids[at] == token for at, token in draft.items() if at in new)
        scored |= new
        outcome = session.advance(model.reports(plan))
        stop = outcome.editable.start - first if outcome.editable else len(outcome.canvas)
        assert {at for at in draft if at < stop} <= scored
        assert session.given.tokens.items() <= dict(enumerate(session.generated)).items() or (
            len(session.generated) < session.given.end
        )
        journal.record(plan, outcome, session.export_state())
        states.append((outcome.canvas, outcome.finish_reason))
        restored = journal.restored_session()
        assert restored.generated == session.generated
        if not session.finished:
            assert restored.plan() == session.plan()
    assert len(states) <= session.step_limit
    assert MASK not in session.generated or session.finish_reason == "stop"


@EVERY_DECODER
def test_the_models_own_answer_takes_a_call_per_block(decoder: str) -> None:
    values = {"decoder": decoder, "block_size": 4, "max_new_tokens": 16, "confidence_threshold": 0.3}
    values |= {"editing_threshold": 0.1} if decoder != "dmax" else {}
    wanted = parse_decoder_settings({**values, "ignore_eos": True})
    model = ContextModel()

    def decode(changed: GenerationSettings) -> DecodeSession:
        session = new_session([1, 2, 3, 4], changed, VOCABULARY)
        while not session.finished:
            session.advance(model.reports(session.plan()))
        return session

    masks = decode(wanted)
    again = decode(wanted.replace(draft=masks.generated))
    assert again.generated == masks.generated
    assert again.steps <= 4 + (decoder == "multi_block") < masks.steps


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"draft": [1] * 9}, "got 9 tokens; max_new_tokens leaves room for 8"),
        ({"draft": [1, 99]}, "token 99 at position 1, which is no token; allowed: ids 0 to 49"),
        ({"draft": [1, EOS], "min_tokens": 4}, "ends the answer before min_tokens"),
        ({"draft": "some text"}, "no tokenizer encodes it"),
        ({"decoder": "lopa", "draft": [1]}, "with decoder lopa: it never replaces a token"),
        ({"decoder": "multi_block", "draft": [1]}, "multi_block with editing_threshold"),
        ({"decoder": "wino", "draft": [1]}, "would not revise a draft"),
        ({"decoder": "renoising", "draft": [1]}, "this model fills masks"),
        ({"draft": [1, -2]}, "draft"),
        ({"draft": [True]}, "draft"),
        ({"draft": 3}, "draft"),
    ],
)
def test_what_is_refused(values, message):
    def begin() -> DecodeSession:
        wanted = parse_decoder_settings({"decoder": "editing", "max_new_tokens": 8, **values})
        return new_session([1, 2], wanted, VOCABULARY)

    with pytest.raises(SettingsError, match=message) as caught:
        begin()
    assert caught.value.setting == ("draft" if "renoising" not in values.values() else "decoder")


def test_a_suffix_bounds_the_draft_of_what_is_before_it() -> None:
    wanted = parse_decoder_settings({"decoder": "editing", "max_new_tokens": 8, "block_size": 32})
    suffix = GivenTokens({6: 5, 7: 5}, "suffix")
    session = new_session([1, 2], wanted.replace(draft=[3] * 6), VOCABULARY, None, suffix)
    assert session.generated == [3] * 6 + [5, 5]
    with pytest.raises(SettingsError, match="leaves room for 6"):
        new_session([1, 2], wanted.replace(draft=[3] * 7), VOCABULARY, None, suffix)
