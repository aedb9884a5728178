"""RunReport: the figures of a run, what limits them, and all answers, as JSON, Markdown, and a table on the console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lopa_lab.paper.reports.measures import INTERVAL, MEASURES, definitions_markdown, score_measure
from lopa_lab.paper.reports.plots import (
    fills_plot,
    latency_scatter,
    plots_markdown,
    tpf_histogram,
    tps_histogram,
)
from lopa_lab.paper.reports.statistics import Summary, fills_per_step, format_number, summarize
from lopa_lab.paper.runs.run import FinishedRun
from lopa_lab.paper.runs.run_info import RunInfo
from lopa_lab.records.markdown import code_block, escape, table
from lopa_lab.records.small_sample import small_sample_note

SCHEMA_VERSION = 2
"""Of report.json and comparison.json. It grows when a name in them goes or changes its meaning."""


class RunReport:
    """What a run gave."""

    def __init__(self, finished: FinishedRun) -> None:
        self.folder = finished.folder
        self.run = finished.info
        self.records = finished.records
        self.summary = summarize(self.records, [self.run.metric])
        self.fills = fills_per_step(self.records)
        self.notes = _notes(self.run, self.summary)
        """Sentences on what limits the figures, the gravest first."""
        self.rows = [
            *((score_measure(name), value) for name, value in self.summary.scores.items()),
            *((each, self.summary.figures[each.name]) for each in MEASURES),
        ]
        """Each figure with its measure, the paper's score first."""

    @property
    def is_complete(self) -> bool:
        """Whether all problems of the data are decoded and graded."""
        return self.run.problems == self.summary.problems == self.summary.graded

    @property
    def decoded(self) -> str:
        """The number of decoded problems and of all problems, as text."""
        return f"{self.summary.problems:,} of {_count(self.run.problems, 'problem', 'problems')}"

    @property
    def made_with(self) -> dict[str, str]:
        """Model, machine and versions, for people: what runs of one table often have in common."""
        machine = self.run.machine
        return {
            "model": self.run.model,
            "requests in flight": str(self.run.concurrency),
            "code": self.run.commit or "installed package",
            "CPU": f"{machine.cpu}, {machine.cores} cores",
            "accelerators": ", ".join(machine.accelerators) or "none",
            "memory": "unknown"
            if machine.memory_bytes is None
            else f"{machine.memory_bytes / 2**30:.1f} GiB",
            "system": machine.os,
            "Python": machine.python,
            **machine.packages,
            **self.run.versions,
        }

    def write(self) -> None:
        """Write report.json, and report.md with its plots, into the folder of the run. Needs matplotlib.

        Raises OSError.
        """
        write_json(self.folder / "report.json", self.as_dict())
        (self.folder / "report.md").write_text(self._markdown(), encoding="utf-8")

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Records are in `records.jsonl` and not repeated."""
        figures = {
            measure.name: {**asdict(value), "unit": measure.unit, "definition": measure.definition}
            for measure, value in self.rows
        }
        scores = {name: figures.pop(name) for name in self.summary.scores}
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
            "notes": self.notes,
            "interval": INTERVAL,
            "scores": scores,
            "figures": figures,
            "fills_per_step": asdict(self.fills),
            "records": "records.jsonl",
        }

    def as_table(self) -> Table:
        """The figures and notes, for the console."""
        run = self.run
        shown = Table(
            "",
            title=Text(f"{run.title}, {run.shots}-shot: {run.config_name}, {self.decoded}"),
            caption=Text("\n".join(self.notes), justify="left"),
            box=SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for name in ("value", "95 % interval"):
            shown.add_column(name, justify="right")
        shown.add_column("unit")
        for row in self._figures():
            shown.add_row(*map(Text, row))
        return shown

    def _figures(self) -> list[list[str]]:
        """Title, value, interval and unit of each figure."""
        return [
            [each.title, format_number(value.value, each.digits), value.interval(each.digits), each.unit]
            for each, value in self.rows
        ]

    def _markdown(self) -> str:
        """The text of report.md, whose plots are written."""
        run = self.run
        facts = {
            "task": f"{run.task} ({run.title}, {run.shots}-shot)",
            "configuration": run.config_name,
            "prompts": "messages, through the model's chat template" if run.chat else "plain text",
            "started": run.started.isoformat(timespec="seconds"),
            **self.made_with,
        }
        settings = yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True).rstrip()
        parts = [
            f"# {escape(run.title)}, {run.shots}-shot: {escape(run.config_name)}",
            f"{escape(run.model)}, {self.decoded}. `{run.metric}` is to be compared with the paper's score.",
            "\n".join(f"- {escape(note)}" for note in self.notes),
            "## Figures",
            table(["figure", "value", "95 % interval", "unit"], self._figures()),
            definitions_markdown([measure for measure, _ in self.rows]),
            plots_markdown(self.folder, self._plots()),
            "## Run",
            code_block(run.command_line, "sh"),
            table(["", ""], [*facts.items()]),
            "## Settings",
            code_block(settings, "yaml"),
            "## Problems" if self.records else "",
            self._problems() if self.records else "",
            "## Answers" if self.records else "",
            *(f"### {escape(each.problem_id)}\n\n{code_block(each.text)}" for each in self.records),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _plots(self) -> dict[str, str]:
        """Caption → SVG text."""
        if not self.records:
            return {}
        plots = {
            "Tokens decided per step": fills_plot({self.run.config_name: self.fills}),
            "TPF of the problems": tpf_histogram(self.records, self.run.metric),
        }
        if self.summary.figures["latency_s"].count:
            plots["Speed of the problems"] = tps_histogram(self.records)
            plots["Latency over the length of the answer"] = latency_scatter(self.records)
        return plots

    def _problems(self) -> str:
        """A table with a row per problem."""
        names = [*self.summary.scores]
        header = ["problem", *names, "tokens", "rounds", "TPF", "tokens/s", "seconds", "ended by", "prompt"]
        rows = [
            [
                each.problem_id,
                *(
                    "–" if (score := (each.scores or {}).get(name)) is None else f"{score:.3g}"
                    for name in names
                ),
                str(each.tokens),
                str(each.steps),
                format_number(each.tpf, 2),
                format_number(each.tps, 1),
                format_number(each.seconds, 3),
                each.finish_reason,
                "truncated" if each.truncated_prompt else "whole",
            ]
            for each in self.records
        ]
        return table(header, rows)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Strict JSON. Raises OSError, and ValueError for numbers that JSON does not have."""
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _notes(run: RunInfo, summary: Summary) -> list[str]:
    wanted = min(run.limit or run.problems, run.problems)
    ungraded = summary.problems - summary.graded
    timed = summary.figures["latency_s"].count
    score = summary.scores[run.metric]
    single = timed - summary.figures["published_avg_tps"].count
    notes = {
        f"This is not the benchmark: the run was limited to the first {wanted:,} of "
        f"{_count(run.problems, 'problem', 'problems')} (--limit), and published numbers are for all of them.": (
            wanted < run.problems
        ),
        small_sample_note(score.count, score.value) or "": score.count > 0,
        f"The run is not complete: {summary.problems:,} of {wanted:,} problems are decoded.": (
            summary.problems < wanted
        ),
        f"{_count(ungraded, 'answer is', 'answers are')} not graded; scores are means over the others.": ungraded,
        f"{_count(summary.truncated_prompts, 'prompt', 'prompts')} lost the beginning, since model.max_model_len has "
        "no room for it beside the answer.": summary.truncated_prompts,
        f"{_count(summary.problems - timed, 'problem has', 'problems have')} no times, since other problems were in "
        "flight as well. Figures in tokens/s and the latency are over the others; with --concurrency 1 every problem "
        "has times.": timed < summary.problems,
        f"Published counts of TPS leave out {_count(single, 'problem', 'problems')} that took a single step.": single,
        f"{_count(summary.reached_length, 'answer', 'answers')} reached the length limit without EOS.": (
            summary.reached_length
        ),
    }
    return [note for note, holds in notes.items() if note and holds]


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
