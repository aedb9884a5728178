"""Which positions a call fills: the published rules, as functions of the scores of masked positions.

Every rule gives positions; equal scores keep their order. That the result is decided, and what a
constraint lets be decided together, is the session's business.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lopa_ray.decoding.branching import Score
from lopa_ray.protocol.keyed_random import keyed_uniform

ORDER_SEED = 0x5EED
"""Keeps draws of positions apart from draws of tokens, which share a request's seed."""


def ranked(scores: dict[int, Score]) -> list[int]:
    """All positions, best ranked first."""
    return sorted(scores, key=lambda p: -scores[p].score)


def above(scores: dict[int, Score], threshold: float, most: int | None = None) -> list[int]:
    """Of the `most` best ranked those with at least probability `threshold`, or the best (Fast-dLLM)."""
    best = ranked(scores)[:most]
    return [p for p in best if scores[p].probability >= threshold] or best[:1]


def above_or_share(scores: dict[int, Score], threshold: float, share: int) -> list[int]:
    """All with probability above `threshold` if they are `share` or more, else the `share` best ranked (SDAR)."""
    sure = [p for p in scores if scores[p].probability > threshold]
    return sure if len(sure) >= share else ranked(scores)[:share]


def by_factor(scores: dict[int, Score], factor: float) -> list[int]:
    """The n best ranked, n ≥ 1 as large as probability c_n ≥ 1 - factor ÷ (n + 1) holds throughout (Fast-dLLM).

    Where only the last one fails it is filled as well; the published code does that.
    """
    best = ranked(scores)
    fails = (n for n, p in enumerate(best[1:], 1) if scores[p].probability < 1 - factor / (n + 2))
    count = next(fails, len(best))
    return best if count == len(best) - 1 else best[:count]


def within_entropy(scores: dict[int, Score], bound: float) -> list[int]:
    """The surest ones whose entropies sum up to less than `bound`, or the surest (JetEngine).

    Scores must be those of ranking neg_entropy.
    """
    best = ranked(scores)
    total = np.cumsum([-scores[p].score for p in best])
    return best[: max(1, int((total < bound).sum()))]


def drawn(scores: dict[int, Score], count: int, temperature: float, seed: int, step: int) -> list[int]:
    """`count` positions drawn without replacement from softmax(score ÷ temperature) (Dream's alg_temp).

    The best of score ÷ temperature + Gumbel noise are such a draw. An infinite temperature draws evenly.
    """

    def noisy(position: int) -> float:
        uniform = max(keyed_uniform(seed ^ ORDER_SEED, step, position), 2.0**-54)
        return scores[position].score / temperature - math.log(-math.log(uniform))

    return sorted(scores, key=lambda p: -noisy(p))[:count]


def each(scores: dict[int, Score], chance: float, seed: int, step: int) -> list[int]:
    """Every position for itself, with the same chance (Dream's origin)."""
    return [p for p in scores if keyed_uniform(seed ^ ORDER_SEED, step, p) < chance]


@lru_cache(16)
def dream_shares(steps: int, eps: float) -> tuple[np.float32, ...]:
    """Per call, the share of what is masked then that Dream's schedule fills; the last one fills all.

    Computed in float32, as published: the product with the number of masks is cut to an integer.
    """
    times = np.linspace(1, eps, steps + 1, dtype=np.float32)
    return (*(np.float32(1) - times[1:-1] / times[:-2]), np.float32(1))


@lru_cache(64)
def dream_schedule(masks: int, steps: int, eps: float, first: int | None = None) -> tuple[int, ...]:
    """Positions per call for `masks` masked ones; `first`: the first call fills that many, whatever its share."""
    counts = []
    for call, share in enumerate(dream_shares(steps, eps)):
        count = first if call == 0 and first is not None else int(np.float32(masks) * share)
        counts.append(count)
        masks -= count
    return tuple(counts)


def even_share(masks: int, steps: int, call: int) -> int:
    """Positions that a call fills: the same for all, but for a remainder that the first calls take (LLaDA, SDAR)."""
    return masks // steps + (call < masks % steps)
