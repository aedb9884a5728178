"""Figures of a run over its problems, each with an interval; tokens that each step decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lopa_lab.paper.reports.measures import MEASURES, Measure, score_measure
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.records.intervals import RESAMPLES, SEED, Resamples, interval


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """What a measure is over problems; None stands for what cannot be said of these."""

    value: float | None
    low: float | None
    """Lower end of the 95 % interval (`lopa_lab.paper.reports.measures.INTERVAL`)."""
    high: float | None
    count: int
    """Problems that have what it is computed from."""

    def interval(self, digits: int) -> str:
        """Both ends for people, on one line; empty without an interval."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:,.{digits}f}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{self.high:,.{digits}f}"


def format_number(value: float | None, digits: int) -> str:
    """For people: with thousands apart; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run."""

    problems: int
    graded: int
    """Problems that have scores."""
    truncated_prompts: int
    reached_length: int
    """Answers that no EOS ended."""
    scores: Mapping[str, MeasureResult]
    """By name, in percent."""
    figures: Mapping[str, MeasureResult]
    """By the names of `MEASURES`, in their units."""


def summarize(
    records: Sequence[ProblemRecord],
    metrics: Sequence[str] = (),
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Summary:
    """All measures and scores of `records`.

    `metrics` are the scores to name first, with the value None if no record has them; scores of the records come
    behind them. The same arguments give the same intervals.
    """
    names = list(dict.fromkeys([*metrics, *(name for each in records for name in each.scores or ())]))
    draws = Resamples(len(records), resamples, seed, drawn="problems") if records else None
    return Summary(
        problems=len(records),
        graded=sum(each.scores is not None for each in records),
        truncated_prompts=sum(each.truncated_prompt for each in records),
        reached_length=sum(each.finish_reason == "length" for each in records),
        scores={name: _measured(score_measure(name), records, draws) for name in names},
        figures={measure.name: _measured(measure, records, draws) for measure in MEASURES},
    )


def _measured(measure: Measure, records: Sequence[ProblemRecord], draws: Resamples | None) -> MeasureResult:
    """The value of a measure, with its interval where two problems or more have a share in it."""
    parts = [(measure.numerator(record), measure.denominator(record)) for record in records]
    shares = [None if above is None or below is None else (above, below) for above, below in parts]
    count = len(shares) - shares.count(None)
    below = [0.0 if share is None else share[1] for share in shares]
    if draws is None or not sum(below) > 0:
        return MeasureResult(None, None, None, count)
    if measure.fastest is None:
        figure = draws.quotient([0.0 if share is None else share[0] for share in shares], below)
    else:
        figure = draws.mean_of_largest([share and share[0] / share[1] for share in shares], measure.fastest)
    low, high = interval(figure)
    if count < 2 or math.isnan(low):
        return MeasureResult(float(figure[0]), None, None, count)
    return MeasureResult(float(figure[0]), low, high, count)


@dataclass(frozen=True, slots=True)
class FillsPerStep:
    """Positions that step i decided (index 0: the first step), over the problems that have a step i (Figure 5)."""

    mean: tuple[float, ...]
    q25: tuple[float, ...]
    q75: tuple[float, ...]
    count: tuple[int, ...]
    """Problems that still decode in that step."""


def fills_per_step(records: Sequence[ProblemRecord]) -> FillsPerStep:
    """Mean and quartiles (interpolated linearly) per step; empty without records."""
    longest = max((len(each.fills) for each in records), default=0)
    columns = [[each.fills[step] for each in records if step < len(each.fills)] for step in range(longest)]
    quartiles = [np.percentile(column, [25, 75]) for column in columns]
    return FillsPerStep(
        tuple(float(np.mean(column)) for column in columns),
        tuple(float(low) for low, _ in quartiles),
        tuple(float(high) for _, high in quartiles),
        tuple(len(column) for column in columns),
    )
