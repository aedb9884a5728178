"""`lopa experiment overhead`: What does lookahead cost on one device?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import StepTotals, column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import PALETTE, error_bars
from lopa_lab.records.intervals import Array, Resamples, estimate
from lopa_lab.records.points_log import Point
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import ResultBuilder

LOOKAHEADS = (1, 2, 4, 8, 15)
"""Lookahead branches k; a step has k + 1 branches with the anchor."""
USUAL = 8
"""The k of the headline."""

LOOKAHEAD, ANCHOR = "lookahead", "anchor alone"
PREPARATION = ("plan", "pack", "select")
VERIFICATION = ("verify",)
STEP = (*PREPARATION, *VERIFICATION, "commit")


class Overhead(Experiment):
    """See the module."""

    problems = 40
    smallest: ClassVar = {"LOOKAHEADS": (1, 3), "USUAL": 3}
    timed = True
    method = (
        "One request at a time in one process, with num_branches k + 1 and, in turns, with 1 (the anchor alone). Means "
        "of wall time per step. Preparation: choosing the winner, its fills and the next forks; the plan; packing it "
        "and copying it to the device. Verification: the rest of the forward of all branches. A step is both and the "
        "commit."
    )

    def points(self) -> Sequence[Point]:
        return [{"k": k} for k in LOOKAHEADS]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """Totals with lookahead and without."""
        settings = {
            LOOKAHEAD: bench.settings(decoder="lopa", num_branches=int(point["k"] or 0) + 1),
            ANCHOR: bench.settings(decoder="lopa", num_branches=1),
        }
        totals = bench.totals_in_turns({name: partial(_decode, bench, s) for name, s in settings.items()})
        return {name: of_name.columns for name, of_name in totals.items()}

    def finding(self, record: ExperimentRecord) -> Finding:
        """Verification against preparation, and steps with lookahead against steps without."""
        resamples = record.resamples
        with_k = _totals(record, LOOKAHEAD)
        usual = with_k[USUAL]
        longer, tpf, per_token = _against_anchor(record).values()
        more_branches = usual.per(resamples, "steps", "branches") - 1
        verification = 1000 * usual.per(resamples, "steps", *VERIFICATION)
        preparation = 1000 * usual.per(resamples, "steps", *PREPARATION)
        best = min(LOOKAHEADS, key=lambda k: per_token[k][0])
        gain = estimate(per_token[USUAL])
        verdict = gain.against(
            1, "does not pay off", "pays off", "does not clearly change the time of a token"
        )
        text = (
            f"With k = {USUAL}, verification takes {verification[0]:.1f} ms of a step and preparation "
            f"{preparation[0]:.2f} ms. Such a step takes {estimate(longer[USUAL]):.2f} times as long as one of the "
            f"anchor alone; each further branch adds {estimate(100 * (longer[USUAL] - 1) / more_branches):.0f} %. TPF "
            f"is {estimate(tpf[USUAL]):.2f} times the anchor's, so a token takes {gain:.2f} times as long: on this one "
            f"device k = {USUAL} {verdict}. A token takes least with k = {best}: {estimate(per_token[best]):.2f} times "
            "as long as with the anchor alone."
        )

        def per_step(*names: str) -> list[Array]:
            return [with_k[k].per(resamples, "steps", *names) for k in LOOKAHEADS]

        table = {
            "k": [str(k) for k in LOOKAHEADS],
            "branches per step": column(per_step("branches"), ".1f"),
            "preparation ms": column((1000 * seconds for seconds in per_step(*PREPARATION)), ".2f"),
            "verification ms": column((1000 * seconds for seconds in per_step(*VERIFICATION)), ".1f"),
            "time per step ÷ anchor's": column(longer.values(), ".2f"),
            "TPF ÷ anchor's": column(tpf.values(), ".2f"),
            "time per token ÷ anchor's": column(per_token.values(), ".2f"),
        }
        headline = (
            f"With k = {USUAL}, verification takes {estimate(verification / preparation):.1f} times as long as "
            f"preparation, a step {estimate(longer[USUAL]):.2f} times as long as the anchor's alone, and a token "
            f"{gain:.2f} times."
        )
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Time per step, TPF and time per token over k, against the anchor alone."""
        for index, (name, figures) in enumerate(_against_anchor(record).items()):
            estimates = [estimate(figure) for figure in figures.values()]
            error_bars(axes[0], LOOKAHEADS, estimates, index, label=name, capsize=2)
        axes[0].axhline(1, color=PALETTE[5], linewidth=1, label="anchor alone")
        axes[0].set_xticks(LOOKAHEADS)
        axes[0].set(xlabel="lookahead branches k", ylabel="÷ the anchor alone", ylim=(0, None))
        axes[0].figure.legend(loc="outside upper left", ncols=4)


def _decode(bench: Workbench, settings: GenerationSettings, question: str) -> dict[str, float]:
    """The sums of a problem's steps."""
    from lopa_lab.bench.decoding import local_steps
    from lopa_ray.execution.lane import lanes_of
    from lopa_ray.execution.packing import Packing

    engine = bench.engine
    runner = engine.runner
    session = engine.create_session(question, settings)
    builder = ResultBuilder(session)
    sums = dict.fromkeys(("branches", "plan", "pack", "verify", "commit", "select"), 0.0)
    for step in local_steps(engine, [session]):
        began = time.perf_counter()
        lanes = [lane for scheduled in step.plan.requests for lane in lanes_of(scheduled)]
        Packing(lanes, [], runner.packing_options).to_device(runner.device)
        pack = time.perf_counter() - began
        sums["plan"] += step.timing.plan
        sums["pack"] += pack
        sums["verify"] += step.timing.forward - pack
        sums["commit"] += step.timing.commit
        sums["select"] += step.timing.select
        for event in step.events:
            builder.add_step(event.plan, event.outcome)
    result = builder.build(None, 0.0)
    return {**sums, "steps": result.steps, "tokens": result.tokens, "branches": result.forwards}


def _totals(record: ExperimentRecord, name: str) -> dict[int, StepTotals]:
    """k → the totals of one of the two decodes."""
    return {k: StepTotals(record.data(k=k)[name]) for k in LOOKAHEADS}


def _ratio(one: StepTotals, other: StepTotals, resamples: Resamples, below: str, *names: str) -> Array:
    """The quotient of the columns `names` per `below` of both: [1 + resamples], float64."""
    quotient: Array = one.per(resamples, below, *names) / other.per(resamples, below, *names)
    return quotient


def _against_anchor(record: ExperimentRecord) -> dict[str, dict[int, Array]]:
    """Time per step, TPF and time per token with each k, against the anchor alone."""
    with_k, alone = _totals(record, LOOKAHEAD), _totals(record, ANCHOR)
    columns = {
        "time per step": ("steps", *STEP),
        "TPF": ("steps", "tokens"),
        "time per token": ("tokens", *STEP),
    }
    return {
        name: {k: _ratio(with_k[k], alone[k], record.resamples, *quotient) for k in LOOKAHEADS}
        for name, quotient in columns.items()
    }


EXPERIMENT = Overhead()
