"""S2D2: what is its own beside the recorded decodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings
from lopa_ray.decoding.decoders.s2d2 import S2D2D2FSettings, S2D2EditingSettings, S2D2Settings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.unmasking_rules import even_fill_count
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.scoring import Drafted
from support.context_model import ContextModel
from support.fake_model import FakeModel

COMMON: dict[str, Any] = {"max_new_tokens": 30, "block_size": 8, "confidence_threshold": 0.8}
EDITS: dict[str, Any] = {**COMMON, "editing_threshold": 0.3, "num_to_transfer": 2}
COMPLETE: dict[str, Any] = {**COMMON, "decoded_token_threshold": 0.0, "block_add_threshold": 0.0}

DECODERS = {
    "block diffusion": (S2D2Settings, {**COMMON, "denoising_steps": 4}),
    "editing": (S2D2EditingSettings, EDITS),
    "D2F": (S2D2D2FSettings, {**COMPLETE, "window_attention": "block_causal"}),
    "D2F, full": (S2D2D2FSettings, COMPLETE),
    "D2F, tiled": (S2D2D2FSettings, {**COMPLETE, "window_attention": "tiled"}),
}
ALL = pytest.mark.parametrize("name", DECODERS)


def outcomes(session: DecodeSession, *, restored: bool = False) -> list[StepOutcome]:
    model, found = ContextModel(seed=3, vocabulary=session.vocabulary), []
    while not session.finished:
        if restored:
            session = session.with_state(session.export_state(), ())
        found.append(session.advance(model.reports(session.plan())))
    return found


def started(settings: GenerationSettings) -> DecodeSession:
    return new_session([5, 6, 7], settings, ContextModel().vocabulary)


def verifying(name: str, **values: object) -> DecodeSession:
    settings, common = DECODERS[name]
    return started(settings(**common, min_expected=0, **values))


@pytest.mark.parametrize(
    ("never", "plain"),
    [
        (
            S2D2Settings(**COMMON, denoising_steps=4, causal_cache=False, min_expected=99),
            BlockDiffusionSettings(**COMMON, denoising_steps=4),
        ),
        (S2D2EditingSettings(**EDITS, min_expected=99), EditingSettings(**EDITS)),
        # Where every block is complete.
        (S2D2D2FSettings(**COMPLETE, min_expected=99), D2FSettings(**COMPLETE)),
    ],
    ids=["block diffusion", "editing", "D2F"],
)
def test_without_verification_it_is_its_base(never: GenerationSettings, plain: GenerationSettings) -> None:
    assert [o.filled for o in outcomes(started(never))] == [o.filled for o in outcomes(started(plain))]


@ALL
def test_a_verified_step_fills_what_its_base_asks_for_and_depends_on_the_seed(name: str) -> None:
    steps = outcomes(verifying(name))
    deciding = [outcome for outcome in steps if outcome.filled]
    assert len(deciding) < len(steps)  # the others draft, or cache a block
    assert len(deciding[0].filled) >= (1 if name.startswith("D2F") else 2)
    answers = {outcomes(verifying(name, seed=seed))[-1].canvas for seed in range(4)}
    assert len(answers) > 1


@ALL
def test_drafts_are_part_of_the_state(name: str) -> None:
    whole, restored = (outcomes(verifying(name), restored=restored) for restored in (False, True))
    assert [o.filled for o in restored] == [o.filled for o in whole]


@ALL
def test_no_row_that_verifies_sees_a_later_position(name: str) -> None:
    """And edits are made before: an earlier row has the token that it gets in the same step."""
    session, model = verifying(name), FakeModel(seed=3)
    verified = edits = 0
    while not session.finished:
        plan = session.plan()
        outcome = session.advance(model.reports(plan))
        canvas = dict(enumerate(outcome.canvas, len(session.prompt)))
        for branch in plan.branches:
            if not isinstance(getattr(branch.scoring, "memory", None), Drafted):
                continue
            (position,) = branch.scored
            assert branch.segments == tuple((stop, stop) for stop in range(plan.start + 1, position + 2))
            mask, ids = session.vocabulary.mask_token_id, plan.input_ids(branch)
            assert ids.index(mask) == position - plan.start
            edited = [p for p, t in branch.fills if plan.canvas[p - plan.start] not in (mask, t)]
            assert all(ids[p - plan.start] == canvas[p] for p in edited)
            verified, edits = verified + 1, edits + len(edited)
    assert verified > 10 and (edits > 0) == (name == "editing")


@ALL
def test_one_branch_verifies_all_where_logits_are_shifted(name: str) -> None:
    settings, common = DECODERS[name]
    vocabulary = replace(ContextModel().vocabulary, shifted=True)
    session = new_session([5, 6, 7], settings(**common, min_expected=0), vocabulary)
    model = ContextModel(seed=3, vocabulary=vocabulary)
    drafts = []
    while not session.finished:
        plan = session.plan()
        assert len(plan.branches) == 1
        memory = getattr(plan.branches[0].scoring, "memory", None)
        if isinstance(memory, Drafted):
            assert len(memory.tokens) == len(plan.branches[0].scored)
            drafts.append(len(memory.tokens))
        session.advance(model.reports(plan))
    assert max(drafts) >= 5


def test_the_schedule_goes_on_behind_a_run_of_masks_that_is_verified_whole() -> None:
    """Static filling fills its share exactly, unless more is verified."""
    settings = S2D2Settings(
        **{**COMMON, "max_new_tokens": 32, "block_size": 16, "denoising_steps": 5},
        remasking="low_confidence_static",
        min_expected=0,
        stop_at_eos=False,
    )
    session, model, shared = new_session([1] * 16, settings, FakeModel().vocabulary), FakeModel(), 0
    calls, masks = [0, 0], [16, 16]
    while not session.finished:
        outcome = session.advance(model.reports(session.plan()))
        if not outcome.filled:
            continue
        positions = [decision.position for decision in outcome.filled]
        block = positions[0] // 16 - 1
        share = min(even_fill_count(16, 5, calls[block]) if calls[block] < 5 else 1, masks[block])
        is_run = len(positions) == positions[-1] - positions[0] + 1
        assert len(positions) == share or is_run
        calls[block], masks[block] = calls[block] + 1, masks[block] - len(positions)
        shared += not is_run
    assert shared > 0
