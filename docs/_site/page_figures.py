"""The figures of `cluster.md`, `models.md` and `serving.md`, from the tables of these pages and from the code's lists.

`python docs/_site/page_figures.py` draws them. A test compares the files with what is drawn.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
FIGURES = DOCS / "figures"
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))

from lopa_lab.records.figure import INK, MARKERS, PALETTE, svg_image
from lopa_ray.model.transformers_models.families import KNOWN_FAMILIES

GPU_MEMORY_GB = {"24 GB": 24, "80 GB": 80, "141 GB": 141}
"""Memory of an RTX 4090 or L4, an A100 or H100, and an H200."""


def table_rows(page: str, *columns: str) -> list[list[str]]:
    """The cells of the table of `page` whose first columns have these names. Raises LookupError if there is none."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = "| " + " | ".join(columns)
    for at, line in enumerate(lines):
        if line.startswith(start):
            rows = lines[at + 2 :]
            end = next((n for n, row in enumerate(rows) if not row.startswith("|")), len(rows))
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:end]]
    raise LookupError(f"{page} has no table that begins with {start}")


def cluster_layout() -> str:
    """Two groups on two nodes: which processes there are, and what they send."""

    def box(axis: Any, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=0.12"
        axis.add_patch(
            FancyBboxPatch(
                (x, y), width, height, style, edgecolor=color, facecolor=color + "0c", linewidth=1.3
            )
        )
        axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10)

    def arrow(axis: Any, begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
        axis.annotate("", end, begin, arrowprops={"arrowstyle": "<->", "color": color, "linewidth": 1.2})

    def draw(axis: Any) -> None:
        box(axis, 2.3, 5.2, 5.4, 0.8, "job, or ingress of the server: requests", PALETTE[4])
        for at in range(2):
            left = 0.1 + 5.0 * at
            box(axis, left, 0.1, 4.8, 4.4, "", INK)
            axis.text(left + 0.15, 4.25, f"node {at + 1}", va="top", fontsize=9)
            box(axis, left + 1.3, 3.2, 2.2, 0.8, "master: plans", PALETTE[0])
            arrow(axis, (5, 5.2), (left + 2.4, 4.0), PALETTE[4])
            for worker in range(3):
                x = left + 0.2 + 1.5 * worker
                box(axis, x, 0.9, 1.4, 1.1, f"worker {worker + 1}\nmodel, K/V", PALETTE[1])
                arrow(axis, (left + 2.4, 3.2), (x + 0.7, 2.0), PALETTE[0])
            axis.text(left + 3.55, 2.72, "each step", fontsize=9)
            arrow(axis, (left + 0.5, 0.7), (left + 4.3, 0.7), PALETTE[2])
            axis.text(left + 2.4, 0.2, "K/V, when a block ends", ha="center", va="bottom", fontsize=9)
        axis.set_xlim(0, 10)
        axis.set_ylim(0, 6.1)
        axis.set_axis_off()

    return svg_image(draw)


def checkpoint_memory() -> str:
    """Weights of the checkpoints on the Hub, compared with the memory of GPUs."""

    def size(checkpoint: Any) -> float:
        return float(checkpoint.weights_gib)

    published = [checkpoint for family in KNOWN_FAMILIES for checkpoint in family.checkpoints]
    checkpoints = [checkpoint for checkpoint in published if "/" in checkpoint.name]
    groups = [
        (gib, [checkpoint.name.split("/")[1] for checkpoint in same])
        for gib, same in groupby(sorted(checkpoints, key=size, reverse=True), size)
    ]

    def draw(axis: Any) -> None:
        names = [name + (f" and {len(others)} more" if others else "") for _, (name, *others) in groups]
        sizes = [gib for gib, _ in groups]
        axis.barh(names, sizes, color=PALETTE[0], height=0.7)
        for at, gib in enumerate(sizes):
            axis.text(2.1, at, f"{gib:.1f}", va="center", fontsize=9, color="white")
        for name, gigabytes in GPU_MEMORY_GB.items():
            gib = gigabytes * 1e9 / 2**30
            axis.axvline(gib, color=PALETTE[4], linestyle="--", linewidth=1.3)
            above = axis.get_xaxis_transform()
            axis.text(gib, 1.02, name, ha="center", fontsize=9, transform=above)
        axis.set_xscale("log")
        axis.set_xlim(2, 300)
        axis.set_xticks([2, 5, 10, 20, 50, 100, 200], ["2", "5", "10", "20", "50", "100", "200"])
        axis.minorticks_off()
        axis.set_xlabel("GiB of weights in bfloat16; dashed: the memory of a GPU")
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(visible=False)

    return svg_image(draw)


def branch_budget() -> str:
    """Requests per second of the server against clients, by budget."""
    rows = table_rows("serving.md", "budget", "concurrency", "requests/s")

    def draw(axis: Any) -> None:
        for at, budget in enumerate(dict.fromkeys(row[0] for row in rows)):
            points = [(row[1], float(row[2])) for row in rows if row[0] == budget]
            xs, ys = zip(*points, strict=True)
            axis.plot(xs, ys, f"{MARKERS[at]}-", color=PALETTE[at], label=budget)
        axis.set_xlabel("requests in flight")
        axis.set_ylabel("requests/s")
        axis.set_ylim(0)
        axis.legend()

    return svg_image(draw)


DRAWN = {
    "cluster_layout.svg": cluster_layout,
    "checkpoint_memory.svg": checkpoint_memory,
    "branch_budget.svg": branch_budget,
}

if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (FIGURES / name).write_text(draw(), encoding="utf-8")
