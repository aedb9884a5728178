"""Figures of runs, against sums that were done by hand."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given, settings, strategies as st

from lopa_lab.paper.reports.statistics import MeasureResult, Summary, fills_per_step, summarize
from lopa_lab.paper.runs.problem_record import ProblemRecord
from support.paper_records import make_record

THREE = (
    make_record(0),
    make_record(
        1,
        tokens=30,
        canvas_tokens=32,
        steps=6,
        forwards=30,
        seconds=3.0,
        first_step_seconds=1.0,
        scores={"exact_match": 0.0, "flexible": 0.5},
    ),
    make_record(
        2,
        tokens=5,
        canvas_tokens=16,
        steps=1,
        forwards=4,
        seconds=0.5,
        first_step_seconds=0.5,
        scores=None,
        finish_reason="length",
        truncated_prompt=True,
    ),
)

some_records = st.lists(
    st.builds(
        make_record,
        tokens=st.integers(1, 600),
        canvas_tokens=st.integers(1, 600),
        steps=st.integers(1, 600),
        forwards=st.integers(1, 9000),
        seconds=st.floats(1.0, 1000.0) | st.none(),
        first_step_seconds=st.floats(0.01, 0.9),
        scores=st.none() | st.fixed_dictionaries({"exact_match": st.floats(0.0, 1.0)}),
    ),
    max_size=15,
)


def value(summary: Summary, name: str) -> float | None:
    return {**summary.scores, **summary.figures}[name].value


@pytest.mark.parametrize(
    ("name", "expected", "count"),
    [
        ("exact_match", 50, 2),
        ("flexible", 50, 1),
        ("tpf", (10 + 30 + 5) / (4 + 6 + 1), 3),
        ("avg_tps", (10 / 2 + 30 / 3 + 5 / 0.5) / 3, 3),
        ("max_tps", 10, 3),
        ("top10_tps", (10 / 2 + 30 / 3 + 5 / 0.5) / 3, 3),
        ("overall_tps", (10 + 30 + 5) / (2 + 3 + 0.5), 3),
        ("latency_s", (2 + 3 + 0.5) / 3, 3),
        ("steps", (4 + 6 + 1) / 3, 3),
        ("forwards", (16 + 30 + 4) / 3, 3),
        ("published_tpf", (12 + 32 + 16) / (4 + 6 + 1), 3),
        ("published_avg_tps", (12 / 1.5 + 32 / 2) / 2, 2),
        ("published_max_tps", 16, 2),
        ("published_top10_tps", (12 / 1.5 + 32 / 2) / 2, 2),
    ],
)
def test_figures_by_hand(name: str, expected: float | None, count: int) -> None:
    summary = summarize(THREE)
    found = {**summary.scores, **summary.figures}
    assert found[name].value == (None if expected is None else pytest.approx(expected))
    assert found[name].count == count
    assert len(found) == 14


def test_what_is_counted() -> None:
    summary = summarize(THREE)
    counted = (summary.problems, summary.graded, summary.truncated_prompts, summary.reached_length)
    assert counted == (3, 2, 1, 1)


def test_ten_fastest_of_twelve() -> None:
    records = [make_record(index, tokens=index, seconds=1.0) for index in range(1, 13)]
    assert value(summarize(records), "top10_tps") == pytest.approx(sum(range(3, 13)) / 10)
    assert value(summarize(records), "max_tps") == 12


def test_interval_of_the_fastest_is_that_of_resamples() -> None:
    """Of two problems a quarter of the resamples has the slower one alone."""
    two = [make_record(0, tokens=2, seconds=1.0), make_record(1, tokens=8, seconds=1.0)]
    figures = summarize(two).figures
    assert astuple(figures["max_tps"]) == (8, 2, 8, 2)
    assert astuple(figures["top10_tps"]) == (5, 2, 8, 2)
    twelve = summarize([make_record(index, tokens=index, seconds=1.0) for index in range(1, 13)]).figures
    assert twelve["max_tps"].high == 12 and twelve["top10_tps"].low < 7.5 < twelve["top10_tps"].high


def test_interval_is_that_of_resampled_quotients() -> None:
    """Of two problems a resample has both (half of the time), or one of them twice."""
    estimate = summarize([make_record(0, tokens=10, steps=1), make_record(1, tokens=90, steps=9)]).figures[
        "tpf"
    ]
    assert astuple(estimate) == (10, 10, 10, 2)
    uneven = summarize([make_record(0, tokens=1, steps=1), make_record(1, tokens=27, steps=9)]).figures["tpf"]
    assert astuple(uneven) == (2.8, 1, 3, 2)


def test_interval_of_a_share_agrees_with_the_normal_approximation() -> None:
    records = [make_record(index, scores={"exact_match": float(index % 4 == 0)}) for index in range(400)]
    estimate = summarize(records).scores["exact_match"]
    half = 1.96 * 100 * (0.25 * 0.75 / 400) ** 0.5
    assert (estimate.low, estimate.high) == (
        pytest.approx(25 - half, abs=0.6),
        pytest.approx(25 + half, abs=0.6),
    )


def test_the_seed_decides_the_draw() -> None:
    records = [make_record(index, tokens=index**2) for index in range(1, 40)]
    assert summarize(records, seed=3) == summarize(records, seed=3)
    assert summarize(records, seed=3) != summarize(records, seed=4)


def test_no_problems_have_no_figures() -> None:
    summary = summarize([], ["exact_match"])
    nothing = MeasureResult(None, None, None, 0)
    assert [*summary.scores.items()] == [("exact_match", nothing)]
    assert {*summary.figures.values()} == {nothing}
    assert summary.problems == summary.graded == 0


def test_one_problem_has_no_interval() -> None:
    summary = summarize([make_record()])
    assert summary.scores["exact_match"] == MeasureResult(100, None, None, 1)
    assert summary.figures["tpf"] == MeasureResult(2.5, None, None, 1)


def test_ungraded_problems_have_no_score() -> None:
    summary = summarize([make_record(0, scores=None), make_record(1, scores=None)], ["exact_match"])
    assert summary.scores["exact_match"] == MeasureResult(None, None, None, 0)
    assert summary.figures["tpf"].value == 2.5


def test_problems_in_flight_together_have_no_speed() -> None:
    records = [make_record(index, seconds=None, first_step_seconds=None) for index in range(12)]
    figures = summarize(records).figures
    without = {name for name, estimate in figures.items() if estimate.value is None}
    assert without == {name for name in figures if name.endswith("tps")} | {"latency_s"}
    assert figures["tpf"].value == 2.5


@settings(max_examples=60)
@given(some_records)
def test_ends_of_intervals_are_in_order(records: list[ProblemRecord]) -> None:
    summary = summarize(records, resamples=50)
    for estimate in (*summary.scores.values(), *summary.figures.values()):
        assert (estimate.low is None) == (estimate.high is None)
        if estimate.low is not None and estimate.high is not None:
            assert estimate.value is not None
            assert estimate.low <= estimate.high


@settings(max_examples=30)
@given(st.integers(2, 30), st.integers(1, 500), st.integers(1, 500), st.floats(1.0, 100.0))
def test_problems_that_are_alike_give_intervals_without_width(
    count: int, tokens: int, steps: int, seconds: float
) -> None:
    alike = [make_record(index, tokens=tokens, steps=steps, seconds=seconds) for index in range(count)]
    for estimate in summarize(alike, resamples=50).figures.values():
        if estimate.low is not None:
            assert (estimate.low, estimate.high) == (pytest.approx(estimate.value),) * 2


@settings(max_examples=30)
@given(some_records, st.sampled_from([0.25, 2.0, 8.0]))
def test_slower_by_a_factor_is_less_tps_by_it(records: list[ProblemRecord], factor: float) -> None:
    def slower(record: ProblemRecord) -> ProblemRecord:
        times = {"seconds": record.seconds, "first_step_seconds": record.first_step_seconds}
        return record.model_copy(update={name: time and time * factor for name, time in times.items()})

    before = summarize(records, resamples=50).figures
    after = summarize([slower(each) for each in records], resamples=50).figures
    for name in before:
        scale = 1 / factor if name.endswith("tps") else factor if name == "latency_s" else 1
        for old, new in zip(astuple(before[name])[:3], astuple(after[name])[:3], strict=True):
            assert new == (None if old is None else pytest.approx(old * scale))


def test_fills_per_step() -> None:
    records = [make_record(index, fills=fills) for index, fills in enumerate([(1, 5, 9), (3,), (5, 7)])]
    curve = fills_per_step(records)
    assert curve.mean == (3, 6, 9)
    assert (curve.q25, curve.q75) == ((2, 5.5, 9), (4, 6.5, 9))
    assert curve.count == (3, 2, 1)
    assert fills_per_step([]).mean == fills_per_step([]).count == ()
