"""Measures: the figures of a run by name, each with its unit and its exact definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lopa_lab.paper.runs.problem_record import ProblemRecord

SCORE = "score"
"""Stands for the score that the paper reports for a task, under any name."""

Terms = Callable[[ProblemRecord], tuple[float, float] | None]
"""A problem's share of a quotient of sums: numerator and denominator, or None where it has no share."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure over the problems of a run: Σ numerator ÷ Σ denominator."""

    name: str
    """In JSON."""
    title: str
    """In tables for people."""
    unit: str
    definition: str
    terms: Terms
    """A mean over problems has 1 as its denominator."""
    fastest: int | None = None
    """The mean is over so many problems only, those with the largest quotients; over all of them if there are fewer."""
    digits: int = 2
    """Decimals in tables for people."""
    published_as: str | None = None
    """What the paper's number of the same count is called in `PUBLISHED`."""


UPPER_END = (
    "No resample has a faster problem than the run itself, so the interval does not say how much faster other problems "
    "could be."
)
INTERVAL = (
    "An interval is the 95 % percentile bootstrap interval: problems are drawn with replacement, all figures of a "
    "resample are computed from the same draw, and quotients of sums are computed as quotients of sums. It shows how "
    "much a figure depends on the choice of problems, not how times differ between runs or machines. Problems that all "
    "have the same value give an interval of width zero, for any number of problems; a single problem has no interval."
)


def score_measure(name: str) -> Measure:
    """The mean of the score `name`, as the paper reports it."""

    def terms(record: ProblemRecord) -> tuple[float, float] | None:
        return (100 * record.scores[name], 1) if record.scores and name in record.scores else None

    return Measure(name, name, "%", _SCORE_DEFINITION, terms, digits=1, published_as=SCORE)


_SCORE_DEFINITION = "Mean of the score over the graded problems × 100."


def published_tps(record: ProblemRecord) -> float | None:
    """`canvas_tokens` ÷ seconds after the first step, as the published code counts; None for a single step, and without
    times."""
    if record.seconds is None or record.first_step_seconds is None or record.steps < 2:
        return None
    seconds = record.seconds - record.first_step_seconds
    return record.canvas_tokens / seconds if seconds > 0 else None


def _tps(record: ProblemRecord) -> tuple[float, float] | None:
    return None if record.tps is None else (record.tps, 1)


def _published_tps(record: ProblemRecord) -> tuple[float, float] | None:
    tps = published_tps(record)
    return None if tps is None else (tps, 1)


MEASURES: tuple[Measure, ...] = (
    Measure(
        "tpf",
        "TPF",
        "tokens/round",
        "Σ tokens ÷ Σ forward rounds. Tokens are those up to and including the answer's first EOS.",
        lambda record: (record.tokens, record.steps),
    ),
    Measure(
        "avg_tps",
        "TPS, mean",
        "tokens/s",
        "Mean over problems of tokens ÷ seconds, from submission to the last step. Times are taken only where each "
        "problem is alone in flight; without them all figures in tokens/s and the latency have no value.",
        _tps,
        digits=1,
    ),
    Measure(
        "max_tps",
        "TPS, fastest problem",
        "tokens/s",
        f"Largest tokens ÷ seconds of a problem. {UPPER_END}",
        _tps,
        fastest=1,
        digits=1,
    ),
    Measure(
        "top10_tps",
        "TPS, ten fastest problems",
        "tokens/s",
        "Mean of tokens ÷ seconds over the ten problems where it is largest, or over all if there are fewer. "
        f"{UPPER_END}",
        _tps,
        fastest=10,
        digits=1,
    ),
    Measure(
        "overall_tps",
        "TPS, of sums",
        "tokens/s",
        "Σ tokens ÷ Σ seconds: long answers weigh more than in the mean over problems.",
        lambda record: None if record.seconds is None else (record.tokens, record.seconds),
        digits=1,
    ),
    Measure(
        "latency_s",
        "latency",
        "s",
        "Mean seconds of a problem, from submission to the last step.",
        lambda record: None if record.seconds is None else (record.seconds, 1),
        digits=3,
        published_as="latency_s",
    ),
    Measure(
        "steps",
        "forward rounds",
        "per problem",
        "Mean forward rounds of a problem.",
        lambda record: (record.steps, 1),
        digits=1,
    ),
    Measure(
        "forwards",
        "branch evaluations",
        "per problem",
        "Mean branch evaluations of a problem, over all its steps.",
        lambda record: (record.forwards, 1),
        digits=1,
    ),
    Measure(
        "published_tpf",
        "TPF, published count",
        "tokens/round",
        "Σ canvas tokens ÷ Σ forward rounds. Canvas tokens are all that were decided, those after the first EOS too.",
        lambda record: (record.canvas_tokens, record.steps),
        published_as="tpf",
    ),
    Measure(
        "published_avg_tps",
        "TPS, mean, published count",
        "tokens/s",
        "Mean over problems of canvas tokens ÷ seconds after the end of the first step. A problem with one step has no "
        "such time and is left out.",
        _published_tps,
        digits=1,
        published_as="avg_tps",
    ),
    Measure(
        "published_max_tps",
        "TPS, fastest problem, published count",
        "tokens/s",
        f"Largest canvas tokens ÷ seconds after the first step of a problem. {UPPER_END}",
        _published_tps,
        fastest=1,
        digits=1,
        published_as="max_tps",
    ),
    Measure(
        "published_top10_tps",
        "TPS, ten fastest problems, published count",
        "tokens/s",
        "Mean of canvas tokens ÷ seconds after the first step, over the ten problems where it is largest, or "
        f"over all if there are fewer. {UPPER_END}",
        _published_tps,
        fastest=10,
        digits=1,
        published_as="top10_tps",
    ),
)
"""In the order of reports."""


PUBLISHED = (SCORE, *(each.published_as for each in MEASURES if each.published_as is not None))
"""What published numbers are called. Each stands beside the figure that counts as the published code does."""


def definitions() -> tuple[Measure, ...]:
    """The score that the paper reports, and all other measures."""
    return (score_measure(SCORE), *MEASURES)
