"""Tables of steps, written out by hand: the plan of each step, the scores that answer it, and the outcome.

A row's plan follows from the canvas and the scores of the rows before, its outcome from plan and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import Decision, StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport
from support.fake_model import VOCABULARY, scored_positions

M = VOCABULARY.mask_token_id
EOS = VOCABULARY.eos_token_id

Scores: TypeAlias = dict[int, tuple[int, float]]
"""Masked position of a branch → its most likely token, and the token's probability, by which positions are ranked."""


@dataclass(frozen=True)
class Step:
    """One step of a session."""

    plan: Plan
    scores: Sequence[Scores]
    """What the model says of each branch."""
    outcome: StepOutcome
    """Without its commit, which is that of the next step's plan."""


def decided(position: int, token: int, probability: float) -> Decision:
    """A decided position, as `Scores` have it."""
    return Decision(position, token, probability, -probability, ())


def check_steps(session: DecodeSession, steps: Sequence[Step]) -> None:
    """Assert that the session takes exactly these steps, and then is finished."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        assert session.plan() == step.plan
        branches = enumerate(zip(step.plan.branches, step.scores, strict=True))
        reports = []
        for index, (branch, scores) in branches:
            scored = scored_positions(step.plan, branch, M, decided=step.plan.scores_decided)
            assert [*scores] == scored, "a table's scores are those of the scored positions"
            reports.append(report(step.plan.step, index, scores, branch.candidates))
        outcome = session.advance(reports)
        assert replace(outcome, commit=None) == step.outcome
        assert following is None or outcome.commit == following.plan.commit
    assert session.finished


def report(step: int, branch: int, scores: Scores, candidates: Sequence[int] = ()) -> BranchReport:
    """The report of a branch. Log-probabilities are the negative probabilities, so that they are exact, too; all
    candidates have the same."""
    probabilities = np.array([probability for _, probability in scores.values()], np.float64)
    return BranchReport(
        step=step,
        branch=branch,
        positions=np.array([*scores], np.int32),
        tokens=np.array([token for token, _ in scores.values()], np.int32),
        probabilities=probabilities,
        logprobs=-probabilities.astype(np.float32),
        scores=probabilities,
        top_tokens=np.tile(np.array(candidates, np.int32), (len(scores), 1)),
        top_logprobs=np.tile(-probabilities.astype(np.float32)[:, None], (1, len(candidates))),
    )
