"""AnsweredRequest: what a client of a server saw of one request, and the figures of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lopa_lab.bench.measurements import Row


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One request; times in seconds."""

    began: float
    """When it was due, on any clock that all requests share."""
    ended: float
    first_token: float | None
    """From when it was due to the first text; None if there was none."""
    tokens: int
    steps: int | None = None
    """Of the decoder; None where the client does not keep what the server says of it."""
    forwards: int | None = None
    correct: bool | None = None
    """Whether the answer solves the problem; None where that is not known."""
    error: str | None = None

    @property
    def latency(self) -> float:
        """Seconds until the end of the answer."""
        return self.ended - self.began


def load_figures(requests: Sequence[AnsweredRequest], deadline_s: float) -> Row:
    """Throughput, latencies and goodput of the requests of one load.

    Percentiles are of those that were answered: the value that so large a share does not exceed.
    """
    answered = [each for each in requests if each.error is None]
    seconds = max(each.ended for each in requests) - min(each.began for each in requests)
    latencies = sorted(each.latency for each in answered)
    first_tokens = sorted(each.first_token for each in answered if each.first_token is not None)
    in_time = sum(latency <= deadline_s for latency in latencies)
    graded = [each.correct for each in answered if each.correct is not None]
    steps = sum(each.steps or 0 for each in answered)
    return {
        "sent": len(requests),
        "failed": len(requests) - len(answered),
        "requests/s": len(answered) / seconds,
        "tokens/s": sum(each.tokens for each in answered) / seconds,
        "first token p50 ms": percentile_ms(first_tokens, 0.5),
        "first token p99 ms": percentile_ms(first_tokens, 0.99),
        "latency p50 ms": percentile_ms(latencies, 0.5),
        "latency p95 ms": percentile_ms(latencies, 0.95),
        "latency p99 ms": percentile_ms(latencies, 0.99),
        f"goodput within {deadline_s:g} s, requests/s": in_time / seconds,
        "TPF": sum(each.tokens for each in answered) / steps if steps else None,
        "branches per step": sum(each.forwards or 0 for each in answered) / steps if steps else None,
        "solved %": 100 * statistics.fmean(graded) if graded else None,
    }


def percentile_ms(ascending: Sequence[float], share: float) -> float | None:
    """The smallest of the values, in seconds, that so large a share does not exceed, in milliseconds; None of none."""
    if not ascending:
        return None
    return 1000 * ascending[math.ceil(share * len(ascending)) - 1]
