"""What plans say of penalties and biases."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import create_session, decode
from support.settings_strategies import ANY_SETTINGS, EOS, FAKE_MODELS, MASK, PROMPTS


@pytest.mark.medium
@settings(max_examples=50)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_a_plan_counts_what_its_canvas_has_decided(prompt, wanted, model):
    penalties = (wanted.repetition_penalty, wanted.frequency_penalty, wanted.presence_penalty)
    _, steps = decode(prompt, wanted, model)
    for step in steps:
        changes = step.plan.logit_changes
        if penalties == (1, 0, 0) and not wanted.logit_bias:
            assert changes is None
            continue
        assert (changes.repetition_penalty, changes.frequency_penalty, changes.presence_penalty) == penalties
        biases = dict(zip(changes.biased_ids.tolist(), changes.bias_values.tolist(), strict=True))
        assert biases == wanted.logit_bias
        decided = [token for token in step.before if token not in (EOS, MASK)]
        assert changes.answer_ids.tolist() == (decided if penalties != (1, 0, 0) else [])
        in_prompt = sorted({*prompt} - {EOS}) if wanted.repetition_penalty != 1 else []
        assert changes.prompt_ids.tolist() == in_prompt


def test_a_restored_session_counts_on():
    """An exported state has what steps have changed, and the prompt is no part of it."""
    wanted = LopaSettings(max_new_tokens=20, block_size=8, repetition_penalty=1.5, frequency_penalty=1.0)
    session, prompt = create_session([*range(40)], wanted), [*range(40)]
    model = FakeModel(seed=3)
    for _ in range(4):
        session.advance(model.reports(session.plan()))
    state = session.export_state()
    assert b"logit_changes" not in state
    restored = create_session(prompt, wanted).with_state(state, ())
    assert restored.plan() == session.plan()
    assert len(restored.plan().logit_changes.answer_ids) >= 3


def test_plans_stay_small():
    """A prompt of thousands of tokens costs its distinct ids; without penalties nothing at all."""
    prompt = [token % 900 for token in range(4000)]
    vocabulary = Vocabulary(1000, 999, 998)

    def size(**changed: object) -> int:
        wanted = LopaSettings(max_new_tokens=256, **changed)
        session = create_session(prompt, wanted, vocabulary)
        model = FakeModel(seed=1, vocabulary=vocabulary)
        for _ in range(5):
            session.advance(model.reports(session.plan()))
        return len(pickle.dumps(session.plan()))

    plain = size()
    assert size(frequency_penalty=0.5) < plain + 1500
    assert size(repetition_penalty=1.1) < plain + 4 * 900 + 1500
    assert size(logit_bias=dict.fromkeys(range(50), 1.0)) < plain + 12 * 50 + 500
    assert size(frequency_penalty=0.0, repetition_penalty=1.0, presence_penalty=0.0, logit_bias={}) == plain


def test_tokens_that_end_an_answer_are_not_counted():
    vocabulary = Vocabulary(50, 49, 48, stop_token_ids=(47,))
    wanted = VanillaSettings(
        max_new_tokens=8, stop_token_ids=(46,), repetition_penalty=2.0, stop_at_eos=False, ignore_eos=True
    )
    session = create_session([1, 46, 47, 48, 2, 1], wanted, vocabulary)
    changes = session.plan().logit_changes
    assert changes.prompt_ids.tolist() == [1, 2]
    assert set(changes.uncounted_ids) == {46, 47, 48, 49}
    assert changes.with_answer([46, 3, 49, 47, 3, 48]).answer_ids.tolist() == [3, 3]


@pytest.mark.parametrize("token", [VOCABULARY.size, 2**40, MASK])
def test_a_bias_on_what_is_never_generated_is_refused(token):
    wanted = LopaSettings(max_new_tokens=4, logit_bias={3: 1.0, token: 1.0})
    with pytest.raises(SettingsError, match=f"logit_bias: got token {token}.*0 to 49.*49"):
        create_session([1], wanted)


def test_keys_may_be_text_as_in_json():
    wanted = LopaSettings(logit_bias={"3": 1, 4: -2.0})
    assert wanted.logit_bias == {3: 1.0, 4: -2.0}
    assert LopaSettings.model_validate_json(wanted.model_dump_json()) == wanted
