"""Measures: the figures of a run by name, each with its unit and its exact definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.records.markdown import escape

SCORE = "score"
"""Stands for the score that the paper reports for a task, under any name."""

OfProblem = Callable[[ProblemRecord], float | None]
"""A number of one problem; None where it has none."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run: Σ numerator ÷ Σ denominator, over the problems that have both."""

    name: str
    """In JSON."""
    title: str
    """In tables for people."""
    unit: str
    definition: str
    numerator: OfProblem
    denominator: OfProblem = lambda _: 1  # of a mean over problems
    fastest: int | None = None
    """The mean is over so many problems only, those with the largest quotients; over all of them if there are fewer."""
    published_as: str | None = None
    """What the paper's number of the same count is called."""

    @property
    def digits(self) -> int:
        """Decimals in tables for people."""
        return {"tokens/round": 2, "s": 3}.get(self.unit, 1)


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
    """The mean of the score `name`."""

    def percent(record: ProblemRecord) -> float | None:
        return 100 * record.scores[name] if record.scores and name in record.scores else None

    definition = "Mean of the score over the graded problems × 100."
    return Measure(name, name, "%", definition, percent, published_as=SCORE)


def _speeds(attribute: str, speed: str, note: str, *, published: bool) -> list[Measure]:
    """The mean of a problem's speed, over all problems, the fastest one and the ten fastest."""
    ten = "over the ten problems where it is largest, or over all if there are fewer"
    prefix, suffix = ("published_", ", published count") if published else ("", "")
    return [
        Measure(
            prefix + name,
            f"TPS, {title}{suffix}",
            "tokens/s",
            definition,
            attrgetter(attribute),
            fastest=fastest,
            published_as=name if published else None,
        )
        for name, title, fastest, definition in (
            ("avg_tps", "mean", None, f"Mean over problems of {speed}. {note}"),
            ("max_tps", "fastest problem", 1, f"Largest {speed} of a problem. {UPPER_END}"),
            ("top10_tps", "ten fastest problems", 10, f"Mean of {speed} {ten}. {UPPER_END}"),
        )
    ]


MEASURES: tuple[Measure, ...] = (
    Measure(
        "tpf",
        "TPF",
        "tokens/round",
        "Σ tokens ÷ Σ forward rounds. Tokens are those up to and including the answer's first EOS.",
        attrgetter("tokens"),
        attrgetter("steps"),
    ),
    *_speeds(
        "tps",
        "tokens ÷ seconds",
        "The seconds are from submission to the last step. Times are taken only where each problem is alone in flight; "
        "without them all figures in tokens/s and the latency have no value.",
        published=False,
    ),
    Measure(
        "overall_tps",
        "TPS, of sums",
        "tokens/s",
        "Σ tokens ÷ Σ seconds: long answers weigh more than in the mean over problems.",
        lambda record: None if record.seconds is None else record.tokens,
        attrgetter("seconds"),
    ),
    Measure(
        "latency_s",
        "latency",
        "s",
        "Mean seconds of a problem, from submission to the last step.",
        attrgetter("seconds"),
        published_as="latency_s",
    ),
    Measure(
        "steps",
        "forward rounds",
        "per problem",
        "Mean forward rounds of a problem.",
        attrgetter("steps"),
    ),
    Measure(
        "forwards",
        "branch evaluations",
        "per problem",
        "Mean branch evaluations of a problem, over all its steps.",
        attrgetter("forwards"),
    ),
    Measure(
        "published_tpf",
        "TPF, published count",
        "tokens/round",
        "Σ canvas tokens ÷ Σ forward rounds. Canvas tokens are all that were decided, those after the first EOS too.",
        attrgetter("canvas_tokens"),
        attrgetter("steps"),
        published_as="tpf",
    ),
    *_speeds(
        "published_tps",
        "canvas tokens ÷ seconds after the first step",
        "A problem with one step has no such time and is left out.",
        published=True,
    ),
)
"""In the order of reports."""

DEFINITIONS = (score_measure(SCORE), *MEASURES)
"""The score that the paper reports, and all other measures."""


def definitions_markdown(measures: Sequence[Measure]) -> str:
    """A line per measure, and what an interval is."""
    lines = [f"- **{escape(each.title)}**: {each.definition}" for each in measures]
    return "\n".join([*lines, "", INTERVAL])
