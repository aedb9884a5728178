"""Edits: what is cached is final, constraints hold through them, forks race by masked positions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.edited_blocks import EditedBlocksSettings
from lopa_ray.decoding.decoders.editing import EditingSession, EditingSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import decode
from support.settings_strategies import FAKE_MODELS, MASK, PROMPTS, any_settings

pytestmark = pytest.mark.medium


@settings(max_examples=40)
@given(PROMPTS, st.one_of([any_settings(name) for name in ("editing", "dmax", "multi_block")]), FAKE_MODELS)
def test_only_final_tokens_are_cached_or_outside_of_what_is_editable(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    canvas = prompt + (list(steps[-1].outcome.canvas) if steps else [])
    for step in steps:
        ids = dict(enumerate(step.plan.canvas, step.plan.start))
        staged = [position for span in step.plan.branches[0].to_stage for position in span]
        assert [ids[position] for position in staged] == [canvas[position] for position in staged]
        outcome = step.outcome
        for position, token in enumerate(outcome.canvas, len(prompt)):
            assert token in (MASK, canvas[position]) or position in outcome.editable


@settings(max_examples=40)
@given(PROMPTS, any_settings("editing"), FAKE_MODELS)
def test_a_block_ends_when_nothing_changes_or_its_calls_are_used_up(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    calls = 0
    for step in steps:
        plan, outcome = step.plan, step.outcome
        has_masks = MASK in plan.input_ids(plan.branches[outcome.winner])
        calls = 0 if has_masks else calls + 1
        scored = plan.branches[0].scored
        masks_left = MASK in outcome.canvas[scored.start - len(prompt) : scored.stop - len(prompt)]
        ends = not masks_left and (calls >= wanted.max_post_steps or not outcome.filled)
        assert ends == (not set(scored) & set(outcome.editable))


PATTERN = "(ab?c+d?){2,9}"
TEXTS = [*(bytes([97 + token % 4]) for token in range(48)), b"", b""]


def constraint_of(pattern: str) -> Constraint:
    automaton = ByteAutomaton.from_regex(pattern)
    return build_constraint(automaton, TEXTS, VOCABULARY.eos_token_id)


EDITORS = [
    EditingSettings(editing_threshold=0.1),
    DMaxSettings(),
    MultiBlockSettings(editing_threshold=0.1, max_blocks=3),
]


@given(st.sampled_from(EDITORS), st.integers(0, 2**16), st.integers(1, 3))
@settings(max_examples=25)
def test_every_canvas_can_become_a_match_whatever_is_edited(
    editor: EditedBlocksSettings | MultiBlockSettings, seed: int, branches: int
) -> None:
    constraint = constraint_of(PATTERN)
    wanted = editor.replace(
        max_new_tokens=12,
        block_size=5,
        confidence_threshold=0.6,
        num_branches=branches,
        guided_regex=PATTERN,
        stop_at_eos=False,
    )
    session, model = new_session([1, 2], wanted, VOCABULARY, constraint), FakeModel(seed=seed)
    while not session.finished:
        outcome = session.advance(model.reports(session.plan()))
        span = range(2, session.max_len)
        assert ConstraintState(constraint, outcome.canvas, MASK, span, 0).satisfiable
    assert MASK not in session.generated
    assert re.fullmatch(PATTERN, b"".join(TEXTS[token] for token in session.generated).decode())


@pytest.mark.parametrize("editor", EDITORS)
def test_a_constraint_does_not_keep_edits_from_being_made(
    editor: EditedBlocksSettings | MultiBlockSettings,
) -> None:
    constraint = constraint_of("[abc]*")
    wanted = editor.replace(max_new_tokens=8, block_size=5, guided_regex="[abc]*")
    session, model, edits = new_session([1], wanted, VOCABULARY, constraint), FakeModel(), 0
    decided: set[int] = set()
    while not session.finished:
        for decision in session.advance(model.reports(session.plan())).filled:
            edits += decision.position in decided
            decided.add(decision.position)
    assert edits > 5


def test_a_decoder_that_never_edits_is_that_of_the_settings() -> None:
    """No probability exceeds a threshold of 1: each block takes one call more than its fills."""
    wanted = EditingSettings(max_new_tokens=9, block_size=3, editing_threshold=1.0, confidence_threshold=1.0)
    session = EditingSession([1, 2, 3], wanted, VOCABULARY)
    model, steps = FakeModel(levels=1000, probability_exponent=3.0), 0
    while not session.finished:
        session.advance(model.reports(session.plan()))
        steps += 1
    assert steps == 9 + 3
