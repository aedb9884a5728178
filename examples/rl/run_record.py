"""The record of a run, as `lopa bench report` reads it: a row per evaluation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from lopa_lab.bench.measurements import BenchRecord, Row
from lopa_lab.records.machine import Machine, checkout_commit
from lopa_ray import __version__

METHOD = (
    "Per update a group answers {problems} problems {answers} times each at temperature 1, and a trainer learns from "
    "the problems of which some answers are right and some wrong, in {minibatches} steps per update: TraceRL's "
    "objective, AdamW from {learning_rate:g} down to 0. Decoder: block_diffusion, blocks of 16 in {denoising_steps} "
    "steps each. sampled, greedy: of {eval_problems} problems the share solved by one answer drawn at temperature 1, "
    "and by the greedy answer. TPF: of the greedy answers. All problems are in held-out words, which the model was "
    "not trained on before; no problem is both learned from and evaluated. rollouts right, replay differs: since the "
    "row before; the latter is the largest difference between a recorded log-probability and the one of a forward of "
    "the trainer's, over all tokens of all answers, in nats. minutes: wall time of updates and evaluations."
)


def write_record(
    lines: Sequence[dict[str, float]], settings: dict[str, object], started: datetime, path: Path
) -> None:
    """Write the record of a run of this process's command, from the lines of its log and its settings; `started`: the
    time when the process did."""
    rows: list[Row] = []
    minutes, since = 0.0, []
    for line in lines:
        minutes += line["minutes"]
        since += [line] if line["update"] else []
        if "greedy" not in line:
            continue
        rows.append(
            {
                "update": int(line["update"]),
                "minutes": minutes,
                "sampled %": 100 * line["sampled"],
                "greedy %": 100 * line["greedy"],
                "TPF": line["tpf"],
                "rollouts right %": 100 * sum(one["reward"] for one in since) / len(since) if since else None,
                "replay differs": max((one["replay_differs"] for one in since), default=None),
            }
        )
        since = []
    BenchRecord(
        benchmark="rl",
        command=("python", *sys.argv),
        started=started,
        machine=Machine.here(),
        version=__version__,
        commit=checkout_commit(),
        method=METHOD.format(**settings),
        keys=("update",),
        rows=tuple(rows),
    ).write(path)
