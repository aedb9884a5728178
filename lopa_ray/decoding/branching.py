"""The anchor's fill set and the lookahead forks, from one branch's report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.report import BranchReport


@dataclass(frozen=True, slots=True)
class Score:
    """What a report says of one position."""

    decision: Decision
    """What is decided if the position is filled."""
    score: float
    """By the plan's ranking."""

    @property
    def probability(self) -> float:
        """Of the chosen token."""
        return self.decision.probability


@dataclass(frozen=True, slots=True)
class Fork:
    """A lookahead branch to be: the one token that it adds to the anchor."""

    decision: Decision
    creation: float
    """Creation confidence: the token's ranking score when it was chosen."""


def scores_by_position(report: BranchReport) -> dict[int, Score]:
    """Index a report by absolute position."""
    return {
        position: Score(
            Decision(
                position, token, probability, logprob, tuple(zip(top_tokens, top_logprobs, strict=True))
            ),
            score,
        )
        for position, token, probability, logprob, score, top_tokens, top_logprobs in zip(
            report.positions.tolist(),
            report.tokens.tolist(),
            report.probabilities.tolist(),
            report.logprobs.tolist(),
            report.scores.tolist(),
            report.top_tokens.tolist(),
            report.top_logprobs.tolist(),
            strict=True,
        )
    }


def anchor_fills(
    canvas: Canvas, scores: dict[int, Score], threshold: float, fit: ConstraintState | None = None
) -> list[Decision]:
    """The usual confidence rule, block by block (LoPA, section 3; D2F, section 4.3).

    In every active block each position with probability strictly above `threshold` is
    filled. Where none is, a complete block fills its best-ranked position (the first of
    equals) and an incomplete one nothing. Where a constraint leaves one token alone, nothing
    is gained by waiting for the model to believe in it. See `admit` for what fits together.
    """
    fills: list[Decision] = []
    for block in canvas.active:
        masked = canvas.masked(block)
        chosen = [p for p in masked if scores[p].probability > threshold or forced(fit, p)]
        if not chosen and masked and block.complete:
            chosen = [max(masked, key=lambda p: scores[p].score)]
        fills.extend(scores[p].decision for p in chosen)
    return admit(fit, fills, scores)


def forced(fit: ConstraintState | None, position: int) -> bool:
    """Whether a constraint leaves one token alone for a position."""
    return fit is not None and fit.is_forced(position)


def lookahead_forks(
    masked: Iterable[int], scores: dict[int, Score], count: int, fit: ConstraintState | None = None
) -> list[Fork]:
    """The `count` best-ranked positions still masked after the anchor's fill, best first.

    Each is one fork, if it fits a constraint. Equal scores keep their order.
    """
    ranked = sorted(masked, key=lambda p: -scores[p].score)
    fitting = (p for p in ranked if fit is None or fit.allows(*scores[p].decision.fill))
    return [Fork(scores[p].decision, scores[p].score) for p in islice(fitting, count)]


def admit(
    fit: ConstraintState | None, wanted: Sequence[Decision], scores: dict[int, Score]
) -> list[Decision]:
    """Those of `wanted` that a constraint lets be decided together, in their order; all without one.

    Each alone leaves a way to a good answer, but two may leave none. So they are taken best-ranked
    first, each if it still fits, and put in. The first always does.
    """
    if fit is None:
        return list(wanted)
    admitted: set[int] = set()
    for decision in sorted(wanted, key=lambda decision: -scores[decision.position].score):
        if fit.allows(*decision.fill):
            fit.fill(*decision.fill)
            admitted.add(decision.position)
    return [decision for decision in wanted if decision.position in admitted]
