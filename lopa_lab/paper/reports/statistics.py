"""Figures of a run over its problems, each with an interval; tokens that each step decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa_lab.paper.reports.measures import MEASURES, Measure, score_measure
from lopa_lab.paper.runs.record import ProblemRecord

Array = npt.NDArray[np.float64]

RESAMPLES = 2000
_DRAWN_AT_ONCE = 1 << 20
"""Problems drawn per block of resamples, which bounds memory."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure; None stands for what cannot be said of these problems."""

    value: float | None
    low: float | None
    """Lower end of the 95 % interval (`lopa_lab.paper.reports.measures.INTERVAL`)."""
    high: float | None
    count: int
    """Problems that have what it is computed from."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run."""

    problems: int
    graded: int
    """Problems that have scores."""
    truncated_prompts: int
    reached_length: int
    """Answers that no EOS ended."""
    scores: Mapping[str, Estimate]
    """By name, in percent."""
    figures: Mapping[str, Estimate]
    """By the names of `MEASURES`, in their units."""


def summarize(
    records: Sequence[ProblemRecord],
    metrics: Sequence[str] = (),
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Summary:
    """All measures and scores of `records`.

    `metrics` are the scores to name first, with the value None if no record has them; scores of the records come
    behind them. The same arguments give the same intervals.
    """
    names = list(dict.fromkeys([*metrics, *(name for each in records for name in each.scores or ())]))
    measures = [*(score_measure(name) for name in names), *MEASURES]
    estimates = _estimates(records, measures, resamples, seed)
    return Summary(
        problems=len(records),
        graded=sum(each.scores is not None for each in records),
        truncated_prompts=sum(each.truncated_prompt for each in records),
        reached_length=sum(each.finish_reason == "length" for each in records),
        scores=dict(zip(names, estimates, strict=False)),
        figures={
            each.name: estimate for each, estimate in zip(MEASURES, estimates[len(names) :], strict=True)
        },
    )


def _estimates(
    records: Sequence[ProblemRecord], measures: Sequence[Measure], resamples: int, seed: int
) -> list[Estimate]:
    terms = [[measure.terms(record) for measure in measures] for record in records]
    shares = np.array([[share or (0.0, 0.0) for share in row] for row in terms], dtype=np.float64)
    shares = shares.reshape(len(records), len(measures), 2)
    counts = [sum(row[column] is not None for row in terms) for column in range(len(measures))]
    low, high = _intervals(shares, [measure.fastest for measure in measures], resamples, seed)
    made = []
    for column, measure in enumerate(measures):
        count, numerators, denominators = counts[column], *shares[:, column].T
        if not denominators.sum() > 0:
            made.append(Estimate(None, None, None, count))
        else:
            value = float(numerators.sum() / denominators.sum())
            if measure.fastest is not None:
                value = float(_fastest(shares[:, column], np.ones((1, len(shares))), measure.fastest)[0])
            ends = (low[column], high[column])
            if count > 1 and np.isfinite(ends).all():
                made.append(Estimate(value, float(ends[0]), float(ends[1]), count))
            else:
                made.append(Estimate(value, None, None, count))
    return made


def _fastest(shares: Array, times: Array, wanted: int) -> Array:
    """Mean of the `wanted` largest quotients of each resample, or of all where it has fewer; NaN without any.

    `shares`: [problems, 2], `times`: [resamples, problems], how often each was drawn; result: [resamples].
    """
    has_value = shares[:, 1] > 0
    values = shares[has_value, 0] / shares[has_value, 1]
    order = np.argsort(-values)
    taken = np.minimum(np.cumsum(times[:, has_value][:, order], axis=1), wanted)
    counts = np.diff(taken, axis=1, prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Array = counts @ values[order] / counts.sum(axis=1)
    return means


def _intervals(
    shares: Array, fastest: Sequence[int | None], resamples: int, seed: int
) -> tuple[Array, Array]:
    """2.5 % and 97.5 % percentiles of Σ numerator ÷ Σ denominator over resamples of problems, or of `_fastest`.

    `shares`: [problems, measures, 2]; both results: [measures], NaN without problems. A resample in which a
    measure's denominator is 0 is left out for it.
    """
    problems, measures, _ = shares.shape
    if not problems:
        return np.full(measures, np.nan), np.full(measures, np.nan)
    generator = np.random.default_rng(seed)
    quotients = np.empty((resamples, measures))
    block = max(1, _DRAWN_AT_ONCE // problems)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = generator.integers(problems, size=(size, problems)) + problems * np.arange(size)[:, None]
        times = (
            np.bincount(drawn.ravel(), minlength=size * problems).reshape(size, problems).astype(np.float64)
        )
        sums = np.tensordot(times, shares, axes=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            quotients[start : start + size] = sums[..., 0] / sums[..., 1]
        for column, wanted in enumerate(fastest):
            if wanted is not None:
                quotients[start : start + size, column] = _fastest(shares[:, column], times, wanted)
    known = np.where(np.isfinite(quotients), quotients, np.nan)
    ends = np.full((2, measures), np.nan)
    has_any = np.isfinite(known).any(axis=0)
    ends[:, has_any] = np.nanpercentile(known[:, has_any], [2.5, 97.5], axis=0)
    return ends[0], ends[1]


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
