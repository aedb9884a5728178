"""Draw the curve of a training of the demo model.

python examples/training/plot_curve.py runs/demo/curve.jsonl curve.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def plot(curve: Path, output: Path) -> None:
    """Losses and accuracies against the step, each the mean of the steps since the line before."""
    lines = [json.loads(line) for line in curve.read_text().splitlines()]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axis, measure, title in zip(axes, ("loss", "right"), ("loss", "predicted right"), strict=True):
        for prefix, name in (("", "diffusion"), ("causal_", "next token")):
            points = [(line["step"], line[prefix + measure]) for line in lines if prefix + measure in line]
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1)
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(output)


if __name__ == "__main__":
    plot(Path(sys.argv[1]), Path(sys.argv[2]))
