"""Report: what a run gave, ready to be written as JSON, Markdown, HTML or a table on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lopa_lab.paper.reports.measures import INTERVAL, MEASURES, PUBLISHED, SCORE, Measure, score_measure
from lopa_lab.paper.reports.number_format import format_interval, format_number, format_published
from lopa_lab.paper.reports.statistics import FillsPerStep, MeasuredValue, Summary, fills_per_step, summarize
from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.runs.run_info import RunInfo
from lopa_ray.errors import SettingsError

SCHEMA_VERSION = 1
"""The version of report.json and comparison.json. It grows when a name in them goes or changes its meaning."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One figure of a report."""

    measure: Measure
    estimate: MeasuredValue
    published: float | None
    """The paper's number, in the measure's unit."""

    @property
    def value(self) -> str:
        """For people."""
        return format_number(self.estimate.value, self.measure.digits)

    @property
    def interval(self) -> str:
        """For people; empty without one."""
        return format_interval(self.estimate, self.measure.digits)

    @property
    def published_value(self) -> str:
        """For people; empty without one."""
        return format_published(self.published)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self.estimate),
            "published": self.published,
            "unit": self.measure.unit,
            "definition": self.measure.definition,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A run's figures beside the published ones, with notes about them."""

    run: RunInfo
    summary: Summary
    fills: FillsPerStep
    rows: tuple[ReportRow, ...]
    """The paper's score first."""
    notes: tuple[str, ...]
    """Sentences on what limits the figures, the gravest first."""
    published_source: str
    """Where published numbers come from; empty without any."""

    @classmethod
    def make(
        cls,
        run: RunInfo,
        records: Sequence[ProblemRecord],
        *,
        published: Mapping[str, float | None] | None = None,
        published_source: str = "",
    ) -> Report:
        """`published`: numbers by their names in `PUBLISHED`, the score in percent. Raises SettingsError for others."""
        known = known_numbers(published or {})
        summary = summarize(records, [run.metric])
        rows = [
            ReportRow(score_measure(name), estimate, known.get(SCORE) if name == run.metric else None)
            for name, estimate in summary.scores.items()
        ]
        rows += [
            ReportRow(each, summary.figures[each.name], known.get(each.published_as or ""))
            for each in MEASURES
        ]
        return cls(
            run=run,
            summary=summary,
            fills=fills_per_step(records),
            rows=tuple(rows),
            notes=tuple(_notes(run, summary)),
            published_source=published_source if known else "",
        )

    @property
    def has_published(self) -> bool:
        """Whether a figure has a published number beside it."""
        return any(each.published is not None for each in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether all problems of the data are decoded and graded."""
        return self.run.problems == self.summary.problems == self.summary.graded

    @property
    def decoded(self) -> str:
        """The number of decoded problems and of all problems, as text."""
        return f"{self.summary.problems:,} of {_count(self.run.problems, 'problem', 'problems')}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Records are in `records.jsonl` and not repeated."""
        scores = [each for each in self.rows if each.measure not in MEASURES]
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.run.model_dump(mode="json"),
            "is_complete": self.is_complete,
            "problems": {
                "decoded": self.summary.problems,
                "of": self.run.problems,
                "graded": self.summary.graded,
                "truncated_prompts": self.summary.truncated_prompts,
                "reached_length": self.summary.reached_length,
            },
            "notes": list(self.notes),
            "interval": INTERVAL,
            "published_source": self.published_source or None,
            "scores": {each.measure.name: each.as_dict() for each in scores},
            "figures": {each.measure.name: each.as_dict() for each in self.rows if each not in scores},
            "fills_per_step": asdict(self.fills),
            "records": "records.jsonl",
        }


def known_numbers(published: Mapping[str, float | None]) -> dict[str, float]:
    """Without those that the paper does not print (None). Raises SettingsError for names not in `PUBLISHED`."""
    for name in published:
        if name not in PUBLISHED:
            raise SettingsError(f"published number: got {name!r}; allowed: {', '.join(PUBLISHED)}")
    return {name: value for name, value in published.items() if value is not None}


def _notes(run: RunInfo, summary: Summary) -> list[str]:
    notes = []
    wanted = min(run.limit or run.problems, run.problems)
    if wanted < run.problems:
        notes.append(
            f"This is not the benchmark: the run was limited to the first {wanted:,} of "
            f"{_count(run.problems, 'problem', 'problems')} (--limit), and published numbers are for all of them."
        )
    if summary.problems < wanted:
        notes.append(f"The run is not complete: {summary.problems:,} of {wanted:,} problems are decoded.")
    ungraded = summary.problems - summary.graded
    if ungraded:
        notes.append(
            f"{_count(ungraded, 'answer is', 'answers are')} not graded; scores are means over the others."
        )
    if summary.truncated_prompts:
        notes.append(
            f"{_count(summary.truncated_prompts, 'prompt', 'prompts')} lost the beginning, since "
            "model.max_model_len has no room for it beside the answer."
        )
    timed = summary.figures["latency_s"].count
    if timed < summary.problems:
        notes.append(
            f"{_count(summary.problems - timed, 'problem has', 'problems have')} no times, since other problems "
            "were in flight as well. Figures in tokens/s and the latency are over the others; with "
            "--concurrency 1 every problem has times."
        )
    single = timed - summary.figures["published_avg_tps"].count
    if single:
        notes.append(
            f"Published counts of TPS leave out {_count(single, 'problem', 'problems')} that took a single step."
        )
    if summary.reached_length:
        notes.append(
            f"{_count(summary.reached_length, 'answer', 'answers')} reached the length limit without EOS."
        )
    return notes


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
