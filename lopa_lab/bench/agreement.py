"""Agreement of answers, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from lopa_ray.decoding.result import GenerationResult


def same_tokens_percent(ours: Sequence[GenerationResult], theirs: Sequence[GenerationResult]) -> float:
    """Share of positions with the same token in both, in percent; a position that one of them lacks differs."""
    pairs = [
        pair
        for one, other in zip(ours, theirs, strict=True)
        for pair in zip_longest(one.token_ids, other.token_ids)
    ]
    return 100 * sum(a == b for a, b in pairs) / len(pairs) if pairs else 100.0
