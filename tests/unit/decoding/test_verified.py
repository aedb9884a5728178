"""Verified lookahead gives what one branch gives, in no more steps."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings, strategies as st

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.lookahead_settings import OF_FORKS, LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from support.context_model import ContextModel
from support.fake_model import VOCABULARY
from support.settings_strategies import ANY_SETTINGS, PROMPTS

CONTEXT_MODELS = st.builds(
    ContextModel,
    seed=st.integers(0, 2**16),
    stability=st.sampled_from([0.5, 0.9, 1.0]),
    eos_probability=st.sampled_from([0.0, 0.02, 0.2]),
    vocabulary=st.sampled_from([VOCABULARY, replace(VOCABULARY, shifted=True)]),
)


@st.composite
def any_verified(draw: st.DrawFn) -> LookaheadSettings:
    """Settings of every decoder with lookahead, with the verified one."""
    wanted = draw(ANY_SETTINGS.filter(lambda wanted: isinstance(wanted, LookaheadSettings)))
    given = {name: getattr(wanted, name) for name in wanted.model_fields_set - wanted.implied - {*OF_FORKS}}
    changes = {"num_branches": draw(st.integers(2, 9)), "lookahead": "verified"}
    if draw(st.booleans()):
        changes |= {"temperature": draw(st.sampled_from([0.5, 1.0])), "seed": draw(st.integers(0, 9))}
    if "settled" in type(wanted).model_fields:
        changes["settled"] = draw(st.sampled_from([None, 0.05, 1.0]))
    return type(wanted)(**given | changes)


def steps_of(session: DecodeSession, model: ContextModel) -> list[StepOutcome]:
    """The outcomes of a request; it may end with an error, which is raised."""
    outcomes = []
    while not session.finished:
        outcomes.append(session.advance(model.reports(session.plan())))
    return outcomes


@settings(max_examples=400)
@given(PROMPTS, any_verified(), CONTEXT_MODELS)
def test_tokens_and_finish_reason_are_those_of_one_branch(
    prompt: list[int], wanted: LookaheadSettings, model: ContextModel
) -> None:
    alone = new_session(prompt, wanted.of_one_branch(), model.vocabulary)
    verified = new_session(prompt, wanted, model.vocabulary)
    of_one, together = steps_of(alone, replace(model)), steps_of(verified, replace(model))
    assert verified.generated == alone.generated
    assert verified.finish_reason == alone.finish_reason
    assert len(together) <= len(of_one)
    rule_steps = [rule_step for outcome in together for rule_step in outcome.rule_steps]
    assert [step.filled for step in rule_steps] == [outcome.filled for outcome in of_one]
    assert [outcome.canvas for outcome in together[-1:]] == [outcome.canvas for outcome in of_one[-1:]]
