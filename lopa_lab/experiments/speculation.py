"""`lopa experiment speculation`: What does it give to draft in the pass that verifies?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lopa_lab.experiments.run.drawing import draw_over_tpf
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Figures, column
from lopa_lab.experiments.run.workbench import Workbench, graded
from lopa_lab.experiments.verified import answer_fingerprint
from lopa_lab.records.intervals import Array, estimate
from lopa_lab.records.points_log import Point
from lopa_ray.protocol.events import RequestStep

SEPARATE, ONE, MOST = "separate", "joint, 1 branch", "joint, 8 branches"
OTHERS = ("D2F", "Fast-dLLM", "LoPA, 4 branches", "verified, 8 branches")

_SPECULATION: dict[str, Any] = {"decoder": "self_speculation", "block_size": 16}

DECODERS: dict[str, dict[str, Any]] = {
    "D2F": {"decoder": "d2f"},
    "Fast-dLLM": {"decoder": "fast_dllm"},
    "LoPA, 4 branches": {"decoder": "lopa", "num_branches": 4},
    "verified, 8 branches": {"decoder": "lopa", "lookahead": "verified", "num_branches": 8},
    SEPARATE: _SPECULATION | {"drafting": "separate"},
    ONE: _SPECULATION,
    "joint, 2 branches": _SPECULATION | {"num_branches": 2},
    "joint, 4 branches": _SPECULATION | {"num_branches": 4},
    MOST: _SPECULATION | {"num_branches": 8},
    "joint, auto": _SPECULATION | {"num_branches": "auto"},
}
"""Settings, by what decodes; the others are the run's, or the decoder's defaults."""

POINTS: dict[str, Point] = {name: {"decoder": name} for name in DECODERS}

JOINT = tuple(name for name in DECODERS if name.startswith("joint"))


class Speculation(Experiment):
    """See the module."""

    problems = 300
    plot_rows = (1, 1)
    method = (
        "Each decoder with its usual settings. separate: self-speculation as published, which drafts a block in one "
        "pass and verifies it in the next. joint: each pass verifies the guesses of its branches, and drafts behind "
        "each of them. Both have blocks of 16. Rows: positions that all forwards compute, the prompt's among them. "
        "Equal answers: token ids and finish reason are those of separate drafting."
    )
    paper = (
        "Nemotron-Labs-Diffusion (arXiv 2607.05722) drafts and verifies in turns; TiDAR "
        "(arXiv 2511.08923) trains a model to do both in one pass."
    )

    def points(self) -> Sequence[Point]:
        return list(POINTS.values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        """The outcomes, the rows of each problem, and the fingerprints of answers that are compared."""
        name = str(point["decoder"])
        settings = bench.settings(**DECODERS[name])
        rows = [0] * len(bench.problems)

        def on_event(index: int, event: RequestStep) -> None:
            rows[index] += event.plan.num_rows

        results = bench.decode(settings, on_event=on_event)
        data = graded(bench.problems, results) | {"rows": rows}
        if name == SEPARATE or name in JOINT:
            data["answers"] = list(map(answer_fingerprint, results))
        return data

    def finding(self, record: ExperimentRecord) -> Finding:
        """Joint drafting against separate drafting and against the other decoders."""
        figures, rows = _figures(record)
        tpf, score = figures.tpf, figures.score
        problems = record.setup.problems
        equal = {name: record.equal_answers(POINTS[name], POINTS[SEPARATE]) for name in JOINT}
        fastest = max(OTHERS, key=lambda name: float(tpf[name][0]))
        all_equal = all(count == problems for count in equal.values())
        gains = f"{estimate(tpf[ONE] / tpf[SEPARATE]):.2f} times the TPF of separate drafting with one branch, and "
        gains += f"{estimate(tpf[MOST] / tpf[SEPARATE]):.2f} times with 8"
        same = f"{'all' if all_equal else 'not all'} answers are equal"
        text = (
            f"Joint drafting has {gains}; {same}. The fastest of the other decoders is {fastest}: one branch has "
            f"{estimate(tpf[ONE] / tpf[fastest]):.2f} times its TPF and 8 branches "
            f"{estimate(tpf[MOST] / tpf[fastest]):.2f} times, at {estimate(score[ONE] - score[fastest]):+.1f} points."
        )
        table = {
            "decoder": list(DECODERS),
            "TPF": column(tpf.values(), ".2f"),
            "score %": column(score.values(), ".1f"),
            "rows per token": column(rows.values(), ".1f"),
        }
        compared = (
            f"Here joint drafting with one branch has {estimate(tpf[ONE] / tpf['LoPA, 4 branches']):.2f} times the TPF "
            f"of LoPA with 4, at {estimate(score[ONE] - score['LoPA, 4 branches']):+.1f} points."
        )
        return Finding(text, table, f"Joint drafting has {gains}; {same}.", compared)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score and rows per token over TPF, with intervals."""
        figures, rows = _figures(record)
        lines = {name: [name] for name in (*OTHERS, SEPARATE)} | {"joint, 1 to 8 branches": [*JOINT[:-1]]}
        draw_over_tpf(axes, lines, figures.tpf, {"solved, %": figures.score, "rows per token": rows})


def _figures(record: ExperimentRecord) -> tuple[Figures[str], dict[str, Array]]:
    """The figures of all decoders, and their rows per token."""
    data = {name: record.data(**point) for name, point in POINTS.items()}
    per_token = {
        name: record.resamples.quotient(of_name["rows"], of_name["tokens"]) for name, of_name in data.items()
    }
    return record.figures(POINTS), per_token


EXPERIMENT = Speculation()
