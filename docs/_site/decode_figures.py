"""The figures of `how_lopa_works.md` and `verified.md`, from decodes of one word problem by the model of the package.

`python docs/_site/decode_figures.py` decodes and draws; with `--draw` it draws the kept decodes again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from lopa_lab.records.figure import MARKERS, PALETTE, svg_image, whole_numbers
from lopa_ray.protocol.outcome import Decision

FIGURES = ROOT / "docs/figures"
DECODES = FIGURES / "decodes.json"
PROBLEM = "Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?"
LONGER_PROBLEM = (
    "There were 74 pizzas in Wendy's pack. Alex gives 7 more pizzas to Wendy. Alex sends Wendy 71 others. How many "
    "does Wendy have now?"
)
"""The problem in the figures of verified lookahead: its answer has more steps."""
DECODERS = ("vanilla", "d2f", "lopa")
ROUND = 2
"""The round of self-speculation that is drawn."""
COLUMNS = 16
"""Positions that are drawn of it."""


def decodes() -> dict[str, Any]:
    """Steps of each decoder: which positions of the answer they decided, and their branches' confidences.

    Of verified lookahead, the positions that the steps of each forward decided, and that one branch decided.
    """
    from lopa_lab.bench.decoding import steps_of
    from lopa_ray import D2FSettings, LocalEngine, LopaSettings, SelfSpeculationSettings, VanillaSettings

    engine = LocalEngine.from_pretrained("demo")
    settings = {
        "vanilla": VanillaSettings(max_new_tokens=64),
        "d2f": D2FSettings(max_new_tokens=64),
        "lopa": LopaSettings(max_new_tokens=64, num_branches=8),
    }
    recorded: dict[str, Any] = {"problem": PROBLEM}
    for name in DECODERS:
        result = engine.generate(PROBLEM, settings[name], trace=True)
        recorded[name] = {
            "tokens": result.tokens,
            "steps": [
                {
                    "decided": sorted(decision.position - result.prompt_tokens for decision in step.decided),
                    "confidences": [round(branch.confidence, 3) for branch in step.branches],
                    "anchor": [not branch.fills for branch in step.branches].index(True)
                    if any(not branch.fills for branch in step.branches)
                    else None,
                    "winner": step.winner,
                }
                for step in result.trace
            ],
        }
    verified = LopaSettings(max_new_tokens=64, num_branches=8, lookahead="verified")
    session = engine.create_session(LONGER_PROBLEM, verified)
    forwards = [step.outcome.rule_steps for step in steps_of(engine, [session])]
    one_branch = engine.generate(LONGER_PROBLEM, verified.of_one_branch(), trace=True)

    def positions(decisions: Iterable[Decision]) -> list[int]:
        return sorted(decision.position - one_branch.prompt_tokens for decision in decisions)

    recorded["verified"] = {
        "problem": LONGER_PROBLEM,
        "tokens": one_branch.tokens,
        "one branch": [positions(step.decided) for step in one_branch.trace],
        "forwards": [[positions(rule_step.filled) for rule_step in rule_steps] for rule_steps in forwards],
    }
    speculation = SelfSpeculationSettings(max_new_tokens=64, num_branches=4)
    session = engine.create_session(LONGER_PROBLEM, speculation)
    round_ = [*steps_of(engine, [session])][ROUND - 1]
    recorded["speculation"] = {
        "last": engine.tokenizer.decode([round_.plan.canvas[0]]),
        "guesses": [
            [engine.tokenizer.decode([token]) for _, token in branch.fills] for branch in round_.plan.branches
        ],
        "masks": speculation.block_size - 1,
        "taken": [engine.tokenizer.decode([decision.token]) for decision in round_.outcome.filled],
    }
    return recorded


def filling_order(recorded: dict[str, Any]) -> str:
    """The steps that decide the positions, with D2F above and LoPA below."""

    def draw(*axes: Any) -> None:
        for at, (axis, name) in enumerate(zip(axes, ("d2f", "lopa"), strict=True)):
            steps = recorded[name]["steps"]
            spots = [
                (p, n)
                for n, step in enumerate(steps, 1)
                for p in step["decided"]
                if p < recorded[name]["tokens"]
            ]
            axis.scatter(*zip(*spots, strict=True), s=12, marker="s", color=PALETTE[at])
            axis.set_ylabel(f"{name}: step")
            axis.set_ylim(len(recorded["d2f"]["steps"]) + 0.7, 0.3)
            whole_numbers(axis.yaxis)
        axes[-1].set_xlabel("position of the answer")

    return svg_image(draw, (1, 1))


def branch_confidences(recorded: dict[str, Any]) -> str:
    """Branch confidence of all branches of each step; the winner is filled."""

    def draw(axis: Any) -> None:
        anchors, lookaheads, winners = [], [], []
        for n, step in enumerate(recorded["lopa"]["steps"], 1):
            for at, confidence in enumerate(step["confidences"]):
                (anchors if at == step["anchor"] else lookaheads).append((n, confidence))
            winners.append((n, step["confidences"][step["winner"]]))
        rows = ((lookaheads, "lookahead branch", 0, 26), (anchors, "anchor branch", 1, 26))
        for spots, label, at, size in rows:
            xs, ys = zip(*spots, strict=True)
            axis.scatter(xs, ys, s=size, marker=MARKERS[at], color=PALETTE[at], label=label)
        xs, ys = zip(*winners, strict=True)
        axis.scatter(xs, ys, s=110, marker="o", facecolors="none", edgecolors=PALETTE[2], label="winner")
        axis.set_xlabel("step")
        whole_numbers(axis.xaxis)
        axis.set_ylabel("branch confidence")
        axis.legend()

    return svg_image(draw)


def progress(recorded: dict[str, Any]) -> str:
    """Decided tokens of the answer against forward rounds."""

    def draw(axis: Any) -> None:
        for at, name in enumerate(DECODERS):
            counts = [0]
            for step in recorded[name]["steps"]:
                counts.append(counts[-1] + sum(p < recorded[name]["tokens"] for p in step["decided"]))
            axis.plot(
                range(len(counts)), counts, marker=MARKERS[at], markersize=4, color=PALETTE[at], label=name
            )
        axis.set_xlabel("forward rounds")
        whole_numbers(axis.xaxis)
        axis.set_ylabel("decided tokens of the answer")
        axis.legend()

    return svg_image(draw)


def verified_forwards(recorded: dict[str, Any]) -> str:
    """The denoising steps that decide the positions, and the forwards that did these steps."""
    forwards = recorded["verified"]["forwards"]

    def draw(axis: Any) -> None:
        row = 0
        for at, rule_steps in enumerate(forwards):
            color = PALETTE[at % 2]
            axis.axhspan(row + 0.5, row + len(rule_steps) + 0.5, color=color, alpha=0.12, linewidth=0)
            middle = row + (len(rule_steps) + 1) / 2
            axis.text(1.01, middle, at + 1, transform=axis.get_yaxis_transform(), va="center", fontsize=9)
            for decided in rule_steps:
                row += 1
                xs = [position for position in decided if position < recorded["verified"]["tokens"]]
                axis.scatter(xs, [row] * len(xs), s=12, marker="s", color=color)
        axis.set_ylim(row + 0.5, 0.5)
        axis.set_xlabel("position of the answer")
        axis.set_ylabel("step of the rule: one branch's forward")
        whole_numbers(axis.yaxis)
        axis.text(1.07, 0.5, "forward of 8 branches", transform=axis.transAxes, rotation=-90, va="center")
        axis.grid(visible=False)

    return svg_image(draw)


def speculation_round(recorded: dict[str, Any]) -> str:
    """The branches of one round of self-speculation, position by position, and the tokens that are taken."""
    round_ = recorded["speculation"]
    taken = round_["taken"]

    def draw(axis: Any) -> None:
        from matplotlib.patches import Rectangle

        def cell(x: int, y: int, text: str, color: str, alpha: float = 0.25) -> None:
            axis.add_patch(
                Rectangle((x, y), 0.92, 0.8, facecolor=color, alpha=alpha, edgecolor=color, linewidth=0.5)
            )
            axis.text(x + 0.46, y + 0.4, text.strip() or "␣", ha="center", va="center", fontsize=7)

        rows = len(round_["guesses"])
        for y, guess in enumerate(round_["guesses"]):
            cell(0, y, round_["last"], PALETTE[4])
            is_right = True
            for x, token in enumerate(guess):
                is_right = is_right and token == taken[x]
                cell(1 + x, y, token, PALETTE[2 if is_right else 1])
            for x in range(1 + len(guess), COLUMNS):
                cell(x, y, "mask", PALETTE[5], 0.1)
            axis.text(-0.2, y + 0.4, f"branch {y + 1}", ha="right", va="center", fontsize=9)
        for x, token in enumerate(taken):
            cell(1 + x, rows + 0.4, token, PALETTE[2 if x < len(taken) - 1 else 0])
        axis.text(-0.2, rows + 0.8, "taken", ha="right", va="center", fontsize=9)
        axis.set_xlim(-1.9, COLUMNS)
        axis.set_ylim(rows + 1.3, -0.1)
        axis.set_axis_off()

    return svg_image(draw)


DRAWN = {
    "filling_order.svg": filling_order,
    "branch_confidences.svg": branch_confidences,
    "progress.svg": progress,
    "verified.svg": verified_forwards,
    "speculation.svg": speculation_round,
}


def main() -> None:
    """Decode unless told otherwise, and write all figures."""
    if "--draw" not in sys.argv[1:]:
        DECODES.write_text(json.dumps(decodes(), indent=1) + "\n", encoding="utf-8")
    recorded = json.loads(DECODES.read_text(encoding="utf-8"))
    for name, draw in DRAWN.items():
        (FIGURES / name).write_text(draw(recorded), encoding="utf-8")


if __name__ == "__main__":
    main()
