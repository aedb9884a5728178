"""`lopa experiment memory`: What do rules give that remember, take back or verify?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lopa_lab.experiments.run.drawing import draw_over_tpf
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.intervals import estimate
from lopa_lab.records.points_log import Point

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "Fast-dLLM, no cache": ("", {"decoder": "fast_dllm", "cache": "none"}),
    "KLASS": ("Fast-dLLM, no cache", {"decoder": "klass", "block_size": 32}),
    "WINO": ("Fast-dLLM, no cache", {"decoder": "wino", "block_size": 32}),
    "D2F": ("", {"decoder": "d2f"}),
    "D2F, settled": ("D2F", {"decoder": "d2f", "settled": 0.05}),
    "D2F, credit": ("D2F", {"decoder": "d2f", "credit_alpha": 0.7}),
    "D2F, S2D2": ("D2F", {"decoder": "s2d2_d2f"}),
    "block diffusion": ("", {"decoder": "block_diffusion", "block_size": 16}),
    "S2D2": ("block diffusion", {"decoder": "s2d2", "block_size": 16}),
}
"""Rule → the rule that it is compared with, and its settings."""

BASES = tuple(name for name, (base, _) in RULES.items() if not base)

POINTS: dict[str, Point] = {name: {"rule": name} for name in RULES}


class Memory(Experiment):
    """See the module."""

    problems = 300
    plot_rows = (1, 1)
    method = (
        "One branch and each rule's usual settings; blocks of 32, those of block diffusion and S2D2 of 16. KLASS fills "
        "positions whose distributions hardly move, WINO fills boldly and takes back, settled fills choices that stay, "
        "credit (CreditDecoding) raises tokens that were favourites before, S2D2 verifies its drafts causally. Each is "
        "compared with the rule of the same canvas and attention, on the same problems."
    )
    paper = (
        "KLASS (arXiv 2511.05664), WINO (2507.18578), CreditDecoding (2510.06133) and S2D2 (2603.25702) take fewer "
        "calls than a threshold or a schedule at an equal or a higher score, on models of 1.7 to 8 billion parameters."
    )

    def points(self) -> Sequence[Point]:
        return list(POINTS.values())

    def measure(self, bench: Workbench, point: Point) -> Data:
        return bench.decode_problems(bench.settings(**RULES[str(point["rule"])][1]))

    def finding(self, record: ExperimentRecord) -> Finding:
        """Each rule against the one that it is compared with."""
        figures = record.figures(POINTS)
        sentences, beside = [], []
        for name, (base, _) in RULES.items():
            if not base:
                beside.append("–")
                continue
            ratio = estimate(figures.tpf[name] / figures.tpf[base])
            points = estimate(figures.score[name] - figures.score[base])
            sentences.append(f"{name} has {ratio:.2f} times the TPF of {base} at {points:+.1f} points")
            beside.append(f"{ratio:.2f} × {base}, {points:+.1f} points")
        text = "; ".join(sentences) + "."
        return Finding(text, {"rule": list(RULES), **figures.columns(), "against": beside}, text)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Score and forwards per token over TPF, with intervals: a line for the rules that are compared."""
        figures = record.figures(POINTS)
        rows = {"solved, %": figures.score, "forwards per token": figures.forwards}
        lines = {base: [name for name in RULES if base in (name, RULES[name][0])] for base in BASES}
        draw_over_tpf(axes, lines, figures.tpf, rows)


EXPERIMENT = Memory()
