"""Figures of a load, from what its clients saw."""

from __future__ import annotations

from itertools import islice

import pytest

from lopa_lab.bench.load import AnsweredRequest, arrival_times, load_figures
from lopa_lab.bench.measurements import percentile_ms


def test_figures_of_a_load() -> None:
    found = [
        AnsweredRequest(0.0, 1.0, 0.5, 10, steps=2, forwards=8, correct=True),
        AnsweredRequest(1.0, 4.0, 0.25, 20, steps=4, forwards=10, correct=False),
        AnsweredRequest(2.0, 5.0, None, 0, error="status 500"),
    ]
    figures = load_figures(found, deadline_s=2.0)
    assert (figures["sent"], figures["failed"]) == (3, 1)
    assert figures["requests/s"] == pytest.approx(2 / 5)
    assert figures["tokens/s"] == pytest.approx(30 / 5)
    assert figures["goodput within 2 s, requests/s"] == pytest.approx(1 / 5)
    assert (figures["TPF"], figures["branches per step"], figures["solved %"]) == (5, 3, 50)
    assert figures["latency p99 ms"] == 3000
    assert figures["first token p50 ms"] == 250


def test_percentiles() -> None:
    assert percentile_ms([], 0.5) is None
    values = [number / 1000 for number in range(1, 101)]
    assert [percentile_ms(values, share) for share in (0.5, 0.99)] == pytest.approx([50, 99])


def test_arrivals_are_random_and_the_same_each_time() -> None:
    times = list(islice(arrival_times(4.0), 4000))
    assert times == list(islice(arrival_times(4.0), 4000))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.1)
