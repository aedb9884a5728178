"""Scores of positions, forks made of them, and what a constraint leaves of fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.protocol.outcome import Decision, Draw
from lopa_ray.protocol.plan import Fill
from lopa_ray.protocol.step_report import BranchReport


class PositionScore(NamedTuple):
    """The scores of one position in a report. A step makes one per masked position, and few of them are decided."""

    probability: float  # the probability of the chosen token
    score: float  # the ranking score
    report: BranchReport
    row: int  # the position's row in the report

    @property
    def decision(self) -> Decision:
        report, at = self.report, self.row
        position, token, logprob = report.positions.item(at), report.tokens.item(at), report.logprobs.item(at)
        tops: tuple[tuple[int, float], ...] = ()
        if report.top_tokens.size:
            tops = tuple(zip(report.top_tokens[at].tolist(), report.top_logprobs[at].tolist(), strict=True))
        draw = Draw(token, *report.draws[at].tolist()) if report.draws.size else None
        return Decision(position, token, self.probability, logprob, tops, draw)


Scores: TypeAlias = dict[int, PositionScore]  # position → its scores


@dataclass(frozen=True, slots=True)
class Fork:
    """A candidate branch: the anchor plus these tokens (one in LoPA)."""

    decisions: tuple[Decision, ...]
    creation_confidence: float  # the mean of the tokens' ranking scores when they were chosen

    @classmethod
    def of(cls, *scores: PositionScore) -> Self:
        """The fork that fills these positions with their chosen tokens."""
        mean = sum(score.score for score in scores) / len(scores)
        return cls(tuple(score.decision for score in scores), mean)

    @property
    def fills(self) -> tuple[Fill, ...]:
        return tuple(decision.fill for decision in self.decisions)


ANCHOR = Fork(decisions=(), creation_confidence=1.0)  # the anchor itself, which adds nothing


def scores_by_position(report: BranchReport) -> Scores:
    columns = report.probabilities.tolist(), report.scores.tolist()
    scores = map(PositionScore, *columns, repeat(report), count())
    return dict(zip(report.positions.tolist(), scores, strict=True))


def report_of_masks(report: BranchReport, canvas: Canvas) -> BranchReport:
    """The rows of masked positions alone, by which branches are compared."""
    return report.select(np.array([canvas.is_masked(p) for p in report.positions.tolist()], np.bool_))


def filter_by_constraint(
    constraint_state: ConstraintState | None, decisions: Sequence[Decision], scores: Scores
) -> list[Decision]:
    """The decisions that a constraint allows together, in their order; all without a constraint. Each alone leaves a
    way to a matching answer, but two may leave none: the best-ranked decisions come first."""
    if constraint_state is None:
        return list(decisions)
    kept_positions: set[int] = set()
    for decision in sorted(decisions, key=lambda decision: -scores[decision.position].score):
        if constraint_state.allows(*decision.fill):
            constraint_state.fill(*decision.fill)
            kept_positions.add(decision.position)
    return [decision for decision in decisions if decision.position in kept_positions]
