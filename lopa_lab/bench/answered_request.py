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
    """Steps of the decoder; None where the client does not keep what the server says of it."""
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
    answered = [request for request in requests if request.error is None]
    seconds = max(request.ended for request in requests) - min(request.began for request in requests)
    latencies = sorted(request.latency for request in answered)
    first_tokens = sorted(request.first_token for request in answered if request.first_token is not None)
    in_time = sum(latency <= deadline_s for latency in latencies)
    graded = [request.correct for request in answered if request.correct is not None]
    steps = sum(request.steps or 0 for request in answered)
    return {
        "sent": len(requests),
        "failed": len(requests) - len(answered),
        "requests/s": len(answered) / seconds,
        "tokens/s": sum(request.tokens for request in answered) / seconds,
        "first token p50 ms": percentile_ms(first_tokens, 0.5),
        "first token p99 ms": percentile_ms(first_tokens, 0.99),
        "latency p50 ms": percentile_ms(latencies, 0.5),
        "latency p95 ms": percentile_ms(latencies, 0.95),
        "latency p99 ms": percentile_ms(latencies, 0.99),
        f"goodput within {deadline_s:g} s, requests/s": in_time / seconds,
        "TPF": sum(request.tokens for request in answered) / steps if steps else None,
        "branches per step": sum(request.forwards or 0 for request in answered) / steps if steps else None,
        "solved %": 100 * statistics.fmean(graded) if graded else None,
    }


def percentile_ms(ascending: Sequence[float], share: float) -> float | None:
    """The smallest of the values, in seconds, that so large a share does not exceed, in milliseconds; None of none."""
    if not ascending:
        return None
    return 1000 * ascending[math.ceil(share * len(ascending)) - 1]
