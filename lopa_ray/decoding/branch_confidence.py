"""Branch confidence: metrics of the ranking scores c_1 .. c_n of a branch's masked positions, in their order."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

BranchConfidence: TypeAlias = Callable[[Sequence[float]], float]
"""Scores (at least one) of a branch's masked positions → the branch's confidence."""

LOG_FLOOR = 1e-30  # replaces a score of 0 where logarithms are taken


def mean(scores: Sequence[float]) -> float:
    """C(B) = (1/n) Σ c_i over the n masked positions (LoPA, section 3)."""
    return math.fsum(scores) / len(scores)


def bottom(scores: Sequence[float], ratio: float) -> float:
    """Mean of the max(1, ⌊n · ratio⌋) lowest scores; ratio in [0, 1]. Raises ValueError for another ratio."""
    _check_share("ratio", ratio)
    count = max(1, int(len(scores) * ratio))
    return math.fsum(sorted(scores)[:count]) / count


def window(scores: Sequence[float], size: float, ratio: float = 0.1) -> float:
    """Mean of the max(1, ⌊m · ratio⌋) lowest of the m = n - size + 1 means of `size` successive scores (DeepConf's
    group confidences). Fewer than `size` scores are one window."""
    width = min(_whole_number("size", size), len(scores))
    starts = range(len(scores) - width + 1)
    return bottom([mean(scores[at : at + width]) for at in starts], ratio)


def segment(scores: Sequence[float], count: float) -> float:
    """min_j mean(S_j), where S_1 .. S_count cut the scores into runs of equal length (±1); at most n runs."""
    n, runs = len(scores), min(_whole_number("count", count), len(scores))
    bounds = [n * at // runs for at in range(runs + 1)]
    return min(mean(scores[a:b]) for a, b in pairwise(bounds))


def certainty(scores: Sequence[float]) -> float:
    """Σ c_i of ranking neg_entropy: minus the uncertainty of the whole sequence, in nats (LookUM, arXiv 2511.05563)."""
    return math.fsum(scores)


def product(scores: Sequence[float]) -> float:
    """Π c_i: how likely all masked positions are right at once, were they independent."""
    return math.prod(scores)


def geometric(scores: Sequence[float]) -> float:
    """(Π c_i)^(1/n)."""
    return math.exp(length_corrected(scores, 1.0))


def length_corrected(scores: Sequence[float], alpha: float) -> float:
    """(Σ ln c_i) ÷ n^α, α in [0, 1]. Raises ValueError for another α."""
    _check_share("alpha", alpha)
    return math.fsum(math.log(max(c, LOG_FLOOR)) for c in scores) / float(len(scores) ** alpha)


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def _whole_number(name: str, value: float) -> int:
    if not 1 <= value < math.inf or value != int(value):
        raise ValueError(f"{name} must be a whole number, 1 or more; got {value}")
    return int(value)


METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (mean, bottom, window, segment, certainty, product, geometric, length_corrected)
}

PROBABILITIES_ONLY = ("product", "geometric", "length_corrected")
"""Metrics that multiply scores, which makes no sense of negative scores."""


def fits_ranking(text: str, ranking: str) -> bool:
    """Whether a metric can do something with the ranking's scores."""
    name = text.partition("(")[0].strip()
    return name not in PROBABILITIES_ONLY if ranking == "neg_entropy" else name != certainty.__name__


def parse_metric(text: str) -> BranchConfidence:
    """Metric from its written form, `name` or `name(number, ...)`. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", text.strip())
    if match is None or match[1] not in METRICS:
        allowed = f"{', '.join(METRICS)}, written name(number)"
        raise ValueError(f"{text!r} is not a branch confidence; allowed: {allowed}")
    metric, parts = METRICS[match[1]], match[2].split(",") if match[2] else []
    try:
        arguments = [float(part) for part in parts]
    except ValueError:
        raise ValueError(f"got {text!r}; allowed: numbers as arguments, as in bottom(0.3)") from None
    _, *names = inspect.signature(metric).parameters
    try:
        metric([1.0], *arguments)  # which checks them
    except TypeError:
        allowed = f"{match[1]}({', '.join(names)})" if names else match[1]
        raise ValueError(f"got {text!r}; allowed: {allowed}") from None
    return partial(metric, **dict(zip(names, arguments, strict=False)))
