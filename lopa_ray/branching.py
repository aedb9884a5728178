"""The anchor's fill set and the lookahead forks, from one branch's report."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.blocks import Canvas
from lopa_ray.plan import BranchReport, Fill


@dataclass(frozen=True, slots=True)
class Score:
    """What a report says of one position."""

    token: int
    probability: float
    score: float
    top_logprobs: tuple[tuple[int, float], ...]


def scores_by_position(report: BranchReport) -> dict[int, Score]:
    """Index a report by absolute position."""
    return {
        position: Score(token, probability, score, tuple(zip(top_tokens, top_logprobs, strict=True)))
        for position, token, probability, score, top_tokens, top_logprobs in zip(
            report.positions.tolist(),
            report.tokens.tolist(),
            report.probabilities.tolist(),
            report.scores.tolist(),
            report.top_tokens.tolist(),
            report.top_logprobs.tolist(),
            strict=True,
        )
    }


def anchor_fills(canvas: Canvas, scores: dict[int, Score], threshold: float) -> list[Fill]:
    """The usual confidence rule, block by block (LoPA, section 3; D2F, section 4.3).

    In every active block each position with probability strictly above `threshold` is
    filled. Where none is, a complete block fills its best-ranked position (the first of
    equals) and an incomplete one nothing.
    """
    fills: list[Fill] = []
    for block in canvas.active:
        masked = canvas.masked(block)
        chosen = [p for p in masked if scores[p].probability > threshold]
        if not chosen and masked and block.complete:
            chosen = [max(masked, key=lambda p: scores[p].score)]
        fills.extend((p, scores[p].token) for p in chosen)
    return fills


def lookahead_forks(canvas: Canvas, scores: dict[int, Score], count: int) -> list[tuple[Fill, float]]:
    """The `count` best-ranked positions still masked after the anchor's fill, best first.

    Each is one fork: (its fill, its creation confidence). Equal scores keep their order.
    """
    open_positions = [p for block in canvas.active for p in canvas.masked(block)]
    ranked = sorted(open_positions, key=lambda p: -scores[p].score)
    return [((p, scores[p].token), scores[p].score) for p in ranked[:count]]
