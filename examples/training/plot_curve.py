"""Draw the curve of a training of the demo model.

python examples/training/plot_curve.py runs/demo/curve.jsonl curve.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

PANELS = {
    "loss": {
        "diffusion": "loss",
        "next token": "causal_loss",
        "holes": "infilling_loss",
        "decisions": "decision_loss",
    },
    "tokens predicted right": {
        "diffusion": "right",
        "next token": "causal_right",
        "holes": "infilling_right",
        "decisions": "decision_right",
    },
    "problems solved": {
        "held out, one branch": "solved",
        "held out, LoPA with 4 branches": "solved_by_lopa",
        "in held-out words": "solved_in_held_out_words",
        "of a visitor": "solved_of_visitors",
    },
}
"""Title → line → its key in the curve."""


def plot(curve: Path, output: Path) -> None:
    """Losses and accuracies, each the mean of the steps since the line before, and evaluations, against the step."""
    lines = [json.loads(line) for line in curve.read_text().splitlines()]
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 3.6), layout="constrained")
    for axis, (title, keys) in zip(axes, PANELS.items(), strict=True):
        for label, key in keys.items():
            points = [(line["step"], line[key]) for line in lines if key in line]
            axis.plot(*zip(*points, strict=True), "." if len(points) == 1 else "-", label=label, linewidth=1)
        axis.set(xlabel="step", title=title, xlim=(0, lines[-1]["step"]))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if title == "loss":
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the curve of a training of the demo model.")
    parser.add_argument("curve", type=Path, help="curve.jsonl of a run")
    parser.add_argument("output", type=Path, help="the figure, such as curve.svg")
    arguments = parser.parse_args()
    if not arguments.curve.exists():
        parser.error(f"curve: no such file: {arguments.curve}")
    plot(arguments.curve, arguments.output)
