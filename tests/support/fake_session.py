"""Decode sessions that a `FakeModel` decodes, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import VOCABULARY, FakeModel


@dataclass(frozen=True)
class SessionStep:
    """One step: the canvas before, what was planned, reported and decided."""

    before: list[int]
    plan: Plan
    reports: list[BranchReport]
    outcome: StepOutcome


def create_session(
    prompt: list[int], settings: GenerationSettings, vocabulary: Vocabulary = VOCABULARY
) -> DecodeSession:
    return new_session(prompt, settings, vocabulary)


def decode(
    prompt: list[int], settings: GenerationSettings, model: FakeModel, vocabulary: Vocabulary = VOCABULARY
) -> tuple[DecodeSession, list[SessionStep]]:
    """The finished session, and all of its steps."""
    session = create_session(prompt, settings, vocabulary)
    return session, list(_steps(session, model))


def _steps(session: DecodeSession, model: FakeModel) -> Iterator[SessionStep]:
    while not session.finished:
        before = session.generated
        plan = session.plan()
        reports = model.reports(plan)
        yield SessionStep(before, plan, reports, session.advance(reports))


def may_decide_nothing(session: DecodeSession, plan: Plan) -> bool:
    """A schedule may plan such a call, and a chance may bring it about; a block may only be cached or edited; and a
    draft decides nothing."""
    return (
        session.may_decide_nothing
        or not plan.branches[0].scored
        or plan.draft_adapter
        or (plan.scores_decided and VOCABULARY.mask_token_id not in plan.canvas)
    )


def let_forks_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on forks are evaluated, and the anchor wins every step."""
    monkeypatch.setattr(Lookahead, "select_winner", lambda _, confidences: len(confidences) - 1)
    monkeypatch.setattr(Lookahead, "fills_last_mask", False)
