"""Commands of `lopa bench` that decode the same in several ways: `english`, `freedave` and `rollouts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cluster.command_line.options import ConfigOption, SetOption, parse_overrides
from lopa_lab.bench.measurements import Measurements
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import benchmark, several
from lopa_ray.errors import SettingsError

FREEDAVE_RULES = "0.9,static,schedule,vanilla"


@benchmark
def freedave(
    config: ConfigOption = "demo",
    assignments: SetOption = None,
    problems: Annotated[int, typer.Option(min=1, max=100, help="Problems of each run, at most.")] = 100,
    rules: Annotated[Any, several(options.WORDS, f"{FREEDAVE_RULES}.")] = FREEDAVE_RULES,
) -> Measurements:
    """Verified lookahead beside recorded decodes of FreeDave's public code: calls, rows and equal answers."""
    from lopa_lab.bench.freedave import measure_freedave
    from lopa_ray.engine.config import Config

    for name in rules:
        if name not in FREEDAVE_RULES.split(","):
            raise SettingsError(f"--rules: got {name!r}; allowed: {FREEDAVE_RULES}")
    return measure_freedave(Config.load(config, parse_overrides(assignments)).given(), problems, rules)


@benchmark
def english(
    config: ConfigOption = "models/smollm2",
    assignments: SetOption = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 100,
    branches: Annotated[
        Any, several(options.WORDS, "Branches of self-speculation; auto is one.")
    ] = "1,4,auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    threads: options.ThreadsOption = 1,
) -> Measurements:
    """Autoregressive decoding of an English model, and self-speculation, which gives the same text."""
    import torch

    from lopa_lab.bench.english import measure_english
    from lopa_ray.engine.config import Config

    torch.set_num_threads(threads)
    overrides = parse_overrides(assignments, max_new_tokens=max_new_tokens)
    return measure_english(Config.load(config, overrides), prompts, _branch_counts(branches), max_new_tokens)


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
    overrides = parse_overrides(assignments)
    overrides.setdefault("decode", {}).setdefault("temperature", 1.0)
    return measure_rollouts(
        Config.load(config, overrides),
        problems,
        answers,
        _branch_counts(branches),
        concurrency or sorted({1, answers}),
    )


def _branch_counts(names: Sequence[str]) -> list[int | str]:
    return [int(name) if name.isdigit() else name for name in names]  # settings refuse other words
