"""Branch confidence: metrics of the ranking scores c_1 .. c_n of a branch's masked positions, in the order of
positions."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

BranchConfidence: TypeAlias = Callable[[Sequence[float]], float]
"""Scores (at least one) of a branch's masked positions → the branch's confidence."""

LOG_FLOOR = 1e-30
"""Replaces a score of 0 where logarithms are taken."""


def mean() -> BranchConfidence:
    """C(B) = (1/n) Σ c_i over the n masked positions (LoPA, section 3)."""
    return lambda scores: math.fsum(scores) / len(scores)


def bottom(ratio: float) -> BranchConfidence:
    """Mean of the max(1, ⌊n · ratio⌋) lowest scores; ratio in [0, 1]. Raises ValueError for another one."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio must be in [0, 1], got {ratio}")

    def confidence(scores: Sequence[float]) -> float:
        count = max(1, int(len(scores) * ratio))
        return math.fsum(sorted(scores)[:count]) / count

    return confidence


def window(size: float, ratio: float = 0.1) -> BranchConfidence:
    """Mean of the max(1, ⌊m · ratio⌋) lowest of the m = n - size + 1 means of `size` successive scores (DeepConf's
    group confidences). Fewer than `size` scores are one window."""
    length = _whole_number("size", size)
    mean_of_lowest = bottom(ratio)

    def confidence(scores: Sequence[float]) -> float:
        width = min(length, len(scores))
        starts = range(len(scores) - width + 1)
        return mean_of_lowest([math.fsum(scores[at : at + width]) / width for at in starts])

    return confidence


def segment(count: float) -> BranchConfidence:
    """min_j mean(S_j), where S_1 .. S_count cut the scores into runs of equal length (±1); at most n runs."""
    num_segments = _whole_number("count", count)

    def confidence(scores: Sequence[float]) -> float:
        n, runs = len(scores), min(num_segments, len(scores))
        bounds = [n * at // runs for at in range(runs + 1)]
        return min(math.fsum(scores[a:b]) / (b - a) for a, b in pairwise(bounds))

    return confidence


def product() -> BranchConfidence:
    """Π c_i: how likely all masked positions are right at once, were they independent."""
    return lambda scores: math.prod(scores)


def geometric() -> BranchConfidence:
    """(Π c_i)^(1/n)."""
    return lambda scores: math.exp(length_corrected(1.0)(scores))


def length_corrected(alpha: float) -> BranchConfidence:
    """(Σ ln c_i) ÷ n^α, α in [0, 1]. Raises ValueError for another one."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    return lambda scores: math.fsum(math.log(max(c, LOG_FLOOR)) for c in scores) / len(scores) ** alpha


def _whole_number(name: str, value: float) -> int:
    if not 1 <= value < math.inf or value != int(value):
        raise ValueError(f"{name} must be a whole number, 1 or more; got {value}")
    return int(value)


METRICS: dict[str, Callable[..., BranchConfidence]] = {
    metric.__name__: metric
    for metric in (mean, bottom, window, segment, product, geometric, length_corrected)
}

PROBABILITIES_ONLY = ("product", "geometric", "length_corrected")
"""Metrics that multiply scores, which makes no sense of negative ones."""


def fits_ranking(text: str, ranking: str) -> bool:
    """Whether a metric can do something with the ranking's scores."""
    return ranking != "neg_entropy" or text.partition("(")[0].strip() not in PROBABILITIES_ONLY


def parse_metric(text: str) -> BranchConfidence:
    """Metric from its written form, `name` or `name(number, ...)`. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", text.strip())
    if match is None or match[1] not in METRICS:
        raise ValueError(
            f"{text!r} is not a branch confidence; allowed: {', '.join(METRICS)}, written name(number)"
        )
    metric, parts = METRICS[match[1]], match[2].split(",") if match[2] else []
    try:
        arguments = [float(part) for part in parts]
    except ValueError:
        raise ValueError(f"got {text!r}; allowed: numbers as arguments, as in bottom(0.3)") from None
    try:
        return metric(*arguments)
    except TypeError:
        parameters = ", ".join(inspect.signature(metric).parameters)
        allowed = f"{match[1]}({parameters})" if parameters else match[1]
        raise ValueError(f"got {text!r}; allowed: {allowed}") from None
