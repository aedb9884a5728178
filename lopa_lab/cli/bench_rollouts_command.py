"""`lopa bench rollouts`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cluster.command_line.options import ConfigOption, SetOption, parse_overrides
from lopa_lab.bench.measurements import Measurements
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import benchmark, several


@benchmark
def rollouts(
    config: ConfigOption = "demo",
    assignments: SetOption = None,
    problems: Annotated[int, typer.Option(min=1, help="Word problems, a group of answers each.")] = 24,
    answers: Annotated[int, typer.Option("--answers", "-n", min=1, max=256, help="Answers of a group.")] = 8,
    branches: Annotated[
        Any, several(options.WORDS, "Branches: exact drafts, if several; or auto.")
    ] = "1,4,8",
    concurrency: Annotated[Any, several(options.POSITIVE, "Answers in flight.", "1, and all")] = None,
    threads: options.ThreadsOption = 1,
) -> Measurements:
    """Rollouts for reinforcement learning, per second: answers drawn at temperature 1, with their trajectories."""
    import torch

    from lopa_lab.bench.rollouts import measure_rollouts
    from lopa_ray.engine.config import Config

    torch.set_num_threads(threads)
    counts = [int(name) if name.isdigit() else name for name in branches]  # settings refuse other words
    overrides = parse_overrides(assignments)
    overrides.setdefault("decode", {}).setdefault("temperature", 1.0)
    return measure_rollouts(
        Config.load(config, overrides), problems, answers, counts, concurrency or sorted({1, answers})
    )
