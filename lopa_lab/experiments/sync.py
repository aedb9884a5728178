"""`lopa experiment sync`: What do commits and control cost in a step on several workers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from lopa_lab.bench.decoding import results_of
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import StepTotals, column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import PALETTE
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.base import Engine
from lopa_ray.protocol.events import RequestStep

SPANS = (8, 32)
BRANCHES = 8
TWO_PHASE, SINGLE_PHASE = "two_phase", "single_phase"
ATTENTION = {TWO_PHASE: "full", SINGLE_PHASE: "block_causal"}
"""Commit protocol → the attention in the window that allows it."""

CONTROL = ("plan", "scatter", "gather", "select")
PREFIX = 64
"""Positions before the span whose pre-write is timed alone."""


class Sync(Experiment):
    """See the module."""

    problems = 40
    timed = True
    smallest = None
    method = (
        f"LoPA with {BRANCHES} branches, one request at a time, on groups of 1, 2, 4 and so on up to group.num_workers "
        "workers, which take turns. Means of wall time per step. commit-winner: the K/V of the winner, by broadcast "
        "under two_phase. pre-write: staging K/V that may be committed, timed by itself. control: neither commit nor "
        "forward. The protocols have different attention, so they decode different canvases. Efficiency: time per step "
        "with one worker ÷ (workers × time per step with so many)."
    )
    paper = "It has two phases on GPUs, and one under the block-causal mask of its system for NPUs."

    def points(self) -> Sequence[Point]:
        return [{"span": span} for span in SPANS]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """Totals per number of workers and protocol, and the pre-write of one block per number of branches.

        Raises SettingsError for a single worker.
        """
        span = int(point["span"] or 0)
        counts = worker_counts(bench.several_workers("sync compares one worker with more"))
        settings = {
            protocol: bench.settings(
                decoder="lopa",
                num_branches=BRANCHES,
                block_size=span,
                window_attention=attention,
            )
            for protocol, attention in ATTENTION.items()
        }
        groups = dict(zip(counts, bench.groups(counts), strict=True))
        totals = bench.totals_in_turns(
            {
                (count, protocol): partial(_decode, engine, of_protocol)
                for count, engine in groups.items()
                for protocol, of_protocol in settings.items()
            }
        )
        return {
            "on this machine": bench.on_this_machine,
            "pre-write ms": _pre_write_ms(bench, span, {1, *map(branches_per_worker, counts)}),
            "workers": {
                str(count): {protocol: totals[count, protocol].columns for protocol in settings}
                for count in counts
            },
        }

    def finding(self, record: ExperimentRecord) -> Finding:
        """The parts of a step, and efficiency with and without the commits."""
        steps = {span: _steps(record, span) for span in SPANS}
        counts = sorted({count for count, _ in steps[SPANS[0]]})
        most = counts[-1]
        sentences = []
        for span in SPANS:
            of_span = steps[span]
            one, several = of_span[1, TWO_PHASE], of_span[most, TWO_PHASE]
            whole = efficiency(one.whole, several.whole, most)
            without = efficiency(one.without_sync, several.without_sync, most)
            sentences.append(
                f"With {most} workers and blocks of {span}, scaling efficiency is {whole[0]:.0f} %; without pre-write "
                f"and commit-winner it would be {without[0]:.0f} %, a difference of {estimate(without - whole):+.1f} "
                "points."
            )
        here = bool(record.data(span=SPANS[0])["on this machine"])
        text = " ".join(sentences) + record.shared_cores(most, on_this_machine=here)
        every = [(span, *key, step) for span in SPANS for key, step in steps[span].items()]
        table = {
            "span": [str(span) for span, *_ in every],
            "workers": [str(count) for _, count, *_ in every],
            "commit": [protocol for _, _, protocol, _ in every],
            "step ms": column((step.whole for *_, step in every), ".1f"),
            **{f"{label} %": [f"{s.share(part):.2f}" for *_, s in every] for part, label in PARTS.items()},
            "efficiency %": column(
                (efficiency(steps[span][1, p].whole, s.whole, count) for span, count, p, s in every), ".0f"
            ),
        }
        many = {span: steps[span][most, TWO_PHASE] for span in SPANS}
        headline = (
            f"With {most} workers, pre-write and commit-winner take "
            + " and ".join(
                f"{many[span].share('pre-write', 'commit'):.1f} % (blocks of {span})" for span in SPANS
            )
            + " of a step, and control "
            + " and ".join(f"{many[span].share('control'):.1f} %" for span in SPANS)
            + "."
        )
        compared = "Here a step with the single-phase commit takes " + " and ".join(
            f"{estimate(steps[span][most, SINGLE_PHASE].whole / steps[span][most, TWO_PHASE].whole):.2f} times as long "
            f"(blocks of {span})"
            for span in SPANS
        )
        return Finding(text, table, headline, f"{compared} as one with two phases, on {most} workers.")

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """The parts of a step, a bar for each span, number of workers and protocol."""
        bars = [
            (f"{span}, {count}, {protocol.replace('_', ' ')}", step)
            for span in SPANS
            for (count, protocol), step in _steps(record, span).items()
        ][::-1]
        left = [0.0] * len(bars)
        for index, (part, label) in enumerate(PARTS.items()):
            widths = [float(100 * step.parts[part][0] / step.whole[0]) for _, step in bars]
            axes[0].barh(range(len(bars)), widths, left=left, color=PALETTE[index], label=label, height=0.7)
            left = [at + width for at, width in zip(left, widths, strict=True)]
        axes[0].set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=9)
        axes[0].set(ylabel="span, workers, commit", xlabel="share of a step (%)")
        axes[0].figure.legend(loc="outside upper left", ncols=4)


PARTS = {"forward": "forward", "pre-write": "pre-write", "commit": "commit-winner", "control": "control"}
"""Parts of a step → what tables call them."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """Milliseconds of each of `PARTS`, per step: [1 + resamples], float64 each."""

    parts: Mapping[str, Array]

    @property
    def whole(self) -> Array:
        """Milliseconds per step: [1 + resamples], float64."""
        return self._sum(*PARTS)

    @property
    def without_sync(self) -> Array:
        """Milliseconds without pre-write and commit-winner: [1 + resamples], float64."""
        return self._sum("forward", "control")

    def share(self, *names: str) -> Any:
        """The estimate of these parts' share of a step, in percent."""
        return estimate(100 * self._sum(*names) / self.whole)

    def _sum(self, *names: str) -> Array:
        total: Array = sum((self.parts[name] for name in names[1:]), self.parts[names[0]])
        return total


def worker_counts(most: int) -> list[int]:
    """1, 2, 4 and so on below `most`, and `most`."""
    counts = [1]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return [*counts, most]


def branches_per_worker(workers: int) -> int:
    """The branches of the worker that has the most."""
    return -(-BRANCHES // workers)


def efficiency(one: Array, many: Array, workers: int) -> Array:
    """Scaling efficiency from times with one worker and with so many, each [1 + resamples] of float64, in percent."""
    return 100 * one / (workers * many)


def _decode(engine: Engine, settings: GenerationSettings, question: str) -> dict[str, float]:
    """The sums of a problem's steps."""
    sums = dict.fromkeys(("steps", "staged", *CONTROL, "commit", "forward"), 0.0)

    def add(_: int, event: RequestStep) -> None:
        assert event.timing is not None
        sums["steps"] += 1
        sums["staged"] += 0 if event.outcome.commit is None else sum(map(len, event.outcome.commit.spans))
        for phase, seconds in asdict(event.timing).items():
            sums[phase] += seconds

    results_of(engine, [engine.create_session(question, settings)], on_event=add)
    return sums


def _pre_write_ms(bench: Workbench, span: int, branches: set[int]) -> dict[str, float]:
    """Branches of a worker → milliseconds of staging a block of each."""
    from lopa_lab.bench.clock import Clock
    from lopa_lab.bench.commit import pre_write_ms
    from lopa_lab.bench.step_plans import StepSize

    runner = bench.engine.runner
    sizes = [StepSize(1, count, span, PREFIX) for count in sorted(branches)]
    times = pre_write_ms(runner, Clock(runner.device), sizes)
    return {str(size.branches): round(time, 6) for size, time in zip(sizes, times, strict=True)}


def _steps(record: ExperimentRecord, span: int) -> dict[tuple[int, str], StepParts]:
    """Workers and protocol → the parts of a step."""
    data, resamples, steps = record.data(span=span), record.resamples, {}
    for workers, protocols in data["workers"].items():
        for protocol, columns in protocols.items():
            totals, count = StepTotals(columns), int(workers)
            # Under single_phase all branches stage the same K/V, and the first branch does it for all of a worker.
            lanes = branches_per_worker(count) if protocol == TWO_PHASE else 1
            staged = totals.per(resamples, "steps", "staged") / span
            pre_write = data["pre-write ms"][str(lanes)] * staged
            steps[count, protocol] = StepParts(
                {
                    "forward": 1000 * totals.per(resamples, "steps", "forward") - pre_write,
                    "pre-write": pre_write,
                    "commit": 1000 * totals.per(resamples, "steps", "commit"),
                    "control": 1000 * totals.per(resamples, "steps", *CONTROL),
                }
            )
    return steps


EXPERIMENT = Sync()
