"""Score and TPF of the shipped model over branches × confidence × attention, as a Markdown table.

Everything else is as in the preset `demo`.

    python benchmarks/sweep.py --problems 100 --jobs 2 --out runs/sweep.jsonl
    python benchmarks/sweep.py --table runs/sweep.jsonl

Problems are the held-out ones of `lopa_ray.presets.word_problems`. A run that was cut off goes on where it
stopped: settings that are in the output file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lopa_ray.config.config import Config
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.presets.word_problems import held_out_problems, is_correct
from tables import markdown_table

HELD_OUT_SEED = 2
BRANCHES = (1, 2, 3, 4, 6, 8, 10, 12)
CONFIDENCES = (0.7, 0.8, 0.9, 0.95)
ATTENTIONS = ("full", "block_causal")

engine: LocalEngine


def load_engine(model: str) -> None:
    """Load the model once per process."""
    global engine
    torch.set_num_threads(1)
    engine = LocalEngine.from_config(Config.load("demo", {"model": {"path": model, "max_num_seqs": 16}}))


def measure(task: tuple[dict[str, Any], int]) -> dict[str, Any]:
    """Share of problems solved, and mean TPF (tokens of all answers ÷ steps of all answers)."""
    changes, count = task
    settings: GenerationSettings = engine.config.decode.replace(**changes)
    problems = held_out_problems(HELD_OUT_SEED, count)
    results = engine.generate([problem.question for problem in problems], settings)
    solved = sum(
        is_correct(problem, result.text or "") for problem, result in zip(problems, results, strict=True)
    )
    tokens, steps = sum(result.tokens for result in results), sum(result.steps for result in results)
    return {**changes, "problems": count, "solved": solved / count, "tpf": tokens / steps}


def table(rows: list[dict[str, Any]]) -> str:
    """One table per attention: a row per number of branches, a column per confidence."""
    lines: list[str] = []
    for attention in ATTENTIONS:
        by_settings = {
            (row["num_branches"], row["confidence_threshold"]): row
            for row in rows
            if row["window_attention"] == attention
        }
        if not by_settings:
            continue
        confidences = sorted({confidence for _, confidence in by_settings})
        lines += [f"\n`window_attention: {attention}` (solved % / TPF)\n"]
        cells = [["branches", *(f"{c:g}" for c in confidences)]]
        for branches in sorted({branches for branches, _ in by_settings}):
            points = [by_settings.get((branches, confidence)) for confidence in confidences]
            shown = [f"{100 * p['solved']:.1f} / {p['tpf']:.2f}" if p else "" for p in points]
            cells.append([str(branches), *shown])
        lines.append(markdown_table(cells))
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/sweep.jsonl"))
    parser.add_argument("--branches", type=int, nargs="+", default=BRANCHES)
    parser.add_argument("--confidences", type=float, nargs="+", default=CONFIDENCES)
    parser.add_argument("--attentions", nargs="+", default=ATTENTIONS, choices=ATTENTIONS)
    parser.add_argument("--table", type=Path, help="only print the table of a finished run")
    arguments = parser.parse_args()
    out: Path = arguments.table or arguments.out
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if arguments.table is None:
        keys = ("num_branches", "confidence_threshold", "window_attention")
        done = {(*(row[key] for key in keys), row["problems"]) for row in rows}
        grid = product(arguments.branches, arguments.confidences, arguments.attentions)
        missing = [point for point in grid if (*point, arguments.problems) not in done]
        tasks = [
            ({**dict(zip(keys, point, strict=True)), "max_new_tokens": 64}, arguments.problems)
            for point in missing
        ]
        out.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with context.Pool(arguments.jobs, load_engine, (arguments.model,)) as pool, out.open("a") as file:
            for row in pool.imap_unordered(measure, tasks):
                print(row, flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()
                rows.append(row)
    print(table([row for row in rows if row["problems"] == max(row["problems"] for row in rows)]))


if __name__ == "__main__":
    main()
