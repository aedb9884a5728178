"""Unmasking rules: which positions a call fills, by the scores of the masked positions. Papers and settings say
remasking. Equal scores keep their order. The session decides the positions, as far as a constraint allows it."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branching import Scores
from lopa_ray.protocol.keyed_random import keyed_uniform

POSITION_SEED = 0x5EED  # keeps draws of positions apart from draws of tokens, which share a request's seed


class RuleBlock(NamedTuple):
    """Masked positions, of which a rule fills all that pass a threshold, or the `least` best if these are more."""

    positions: list[int]  # ascending
    threshold: float  # of probability; above 1 none passes, as in a schedule
    least: int


def rank_by_score(scores: Scores) -> list[int]:
    """All positions, best ranked first."""
    return sorted(scores, key=lambda p: -scores[p].score)


def select_above_threshold(scores: Scores, threshold: float, max_count: int | None = None) -> list[int]:
    """Positions of the `max_count` best with at least probability `threshold`, or the best (Fast-dLLM)."""
    best = rank_by_score(scores)[:max_count]
    return [p for p in best if scores[p].probability >= threshold] or best[:1]


def select_near_anchors(
    scores: Scores, threshold: float, relaxed_threshold: float, radius: int, max_count: int | None = None
) -> list[int]:
    """The best position, and of the `max_count` best all with at least probability `threshold`, or
    `relaxed_threshold` within `radius` positions of one with `threshold` (LocalLeap, arXiv 2510.07081)."""
    anchors = [p for p in scores if scores[p].probability >= threshold]
    near = {p for anchor in anchors for p in range(anchor - radius, anchor + radius + 1)}
    best = rank_by_score(scores)[:max_count]
    return best[:1] + [
        p for p in best[1:] if scores[p].probability >= (relaxed_threshold if p in near else threshold)
    ]


def select_above_threshold_or_count(scores: Scores, threshold: float, min_count: int) -> list[int]:
    """All with probability above `threshold`, or the `min_count` best ranked if these are more (SDAR)."""
    sure = [p for p in scores if scores[p].probability > threshold]
    return sure if len(sure) >= min_count else rank_by_score(scores)[:min_count]


def select_leading(scores: Scores, threshold: float) -> list[int]:
    """All before the first, from the left, whose probability is below `threshold`, or the leftmost one (DMax)."""
    positions = sorted(scores)
    return list(takewhile(lambda p: scores[p].probability >= threshold, positions)) or positions[:1]


def select_by_block(canvas: BlockCanvas, scores: Scores, threshold: float) -> list[int]:
    """All positions of active blocks with probability above `threshold`; in a complete block without one, the best
    ranked (LoPA, section 3; D2F, section 4.3)."""
    positions: list[int] = []
    for block in canvas.active:
        masked = canvas.masked_positions(block.span)
        chosen = [p for p in masked if scores[p].probability > threshold]
        if not chosen and masked and block.complete:
            chosen = [max(masked, key=lambda p: scores[p].score)]
        positions += chosen
    return positions


def select_by_factor(scores: Scores, factor: float) -> list[int]:
    """The n best ranked, n ≥ 1 as large as probability c_n ≥ 1 - factor ÷ (n + 1) holds throughout (Fast-dLLM). Where
    only the last one fails it is filled as well; the published code does that."""
    best = rank_by_score(scores)
    fails = (n for n, p in enumerate(best[1:], 1) if scores[p].probability < 1 - factor / (n + 2))
    count = next(fails, len(best))
    return best if count == len(best) - 1 else best[:count]


def select_within_entropy(scores: Scores, max_entropy: float) -> list[int]:
    """The surest positions whose entropies sum up to less than `max_entropy`, at least one (JetEngine). Scores must be
    of ranking neg_entropy."""
    best = rank_by_score(scores)
    total = np.cumsum([-scores[p].score for p in best])
    return best[: max(1, int((total < max_entropy).sum()))]


def sample_by_score(scores: Scores, count: int, temperature: float, seed: int, step: int) -> list[int]:
    """`count` positions drawn without replacement from softmax(score ÷ temperature) (Dream's alg_temp): the best of
    score ÷ temperature + Gumbel noise. An infinite temperature draws evenly."""

    def noisy(position: int) -> float:
        uniform = max(keyed_uniform(seed ^ POSITION_SEED, step, position), 2.0**-54)
        return scores[position].score / temperature - math.log(-math.log(uniform))

    return sorted(scores, key=lambda p: -noisy(p))[:count]


def sample_independently(scores: Scores, probability: float, seed: int, step: int) -> list[int]:
    """Every position for itself, with the same probability (Dream's origin)."""
    return [p for p in scores if keyed_uniform(seed ^ POSITION_SEED, step, p) < probability]


@lru_cache(16)
def dream_fill_fractions(steps: int, eps: float) -> tuple[np.float32, ...]:
    """The fraction of the masked positions that each call of Dream's schedule fills; the last call fills all. In
    float32, as published: the product with the number of masks is cut to an integer."""
    times = np.linspace(1, eps, steps + 1, dtype=np.float32)
    return (*(np.float32(1) - times[1:-1] / times[:-2]), np.float32(1))


@lru_cache(64)
def dream_fill_counts(masks: int, steps: int, eps: float, first: int | None = None) -> tuple[int, ...]:
    """Positions per call, for so many `masks`. `first`: how many the first call fills, in place of its fraction."""
    counts = []
    for call, fraction in enumerate(dream_fill_fractions(steps, eps)):
        count = first if call == 0 and first is not None else int(np.float32(masks) * fraction)
        counts.append(count)
        masks -= count
    return tuple(counts)


def even_fill_count(masks: int, steps: int, call: int) -> int:
    """Positions that a call fills: the same for all, but for a remainder that the first calls take (LLaDA, SDAR)."""
    return masks // steps + (call < masks % steps)
