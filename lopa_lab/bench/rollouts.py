"""`lopa bench rollouts`: groups of answers with their trajectories, by one branch and by exact drafts in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import torch

from lopa_lab.bench.clock import Clock
from lopa_lab.bench.decoding import results_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.word_problems import held_out_problems
from lopa_ray.decoding.trajectory import Trajectory
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, SettingsError
from lopa_ray.protocol.events import RequestStep

SEED = 66
"""The seed of the problems. The answers of a group have the seeds from 0 on."""


def measure_rollouts(
    config: Config, problems: int, answers: int, branches: Sequence[int | str], concurrency: Sequence[int]
) -> Measurements:
    """Groups of answers to word problems: with one branch by the rule of `config`, with several by exact drafts.

    Raises SettingsError for settings that cannot be, LopaError if a trajectory is not that of the first number of
    branches, and what engines raise.
    """
    slots, clock = max(concurrency), Clock(torch.device("cpu"))
    if slots > answers:
        raise SettingsError(f"--concurrency: got {slots}; allowed: 1 to {answers}, the answers of a group")
    alone = config.decode.replace(trajectory=True, num_branches=1)
    drafts = {"lookahead": "verified"}
    settings = {
        count: alone.replace(num_branches=count, **drafts if count != 1 else {}) for count in branches
    }
    spent = {way: Counter[str]() for way in product(concurrency, branches)}
    texts = [problem.question for problem in held_out_problems(SEED, problems)]
    with LocalEngine.from_config(config.replace(model=config.model.replace(max_num_seqs=slots))) as engine:

        def trajectories(
            text: str, number: int, count: int | str, spent: Counter[str]
        ) -> list[Trajectory | None]:
            def add_step(_: int, event: RequestStep) -> None:
                cached = event.cached_positions * len(event.plan.branches)
                spent.update(forwards=1, rows=event.plan.num_rows - cached)

            seeds, results = range(answers), []
            sessions = [engine.create_session(text, settings[count].replace(seed=seed)) for seed in seeds]
            began = clock.now()
            for first in seeds[::number]:
                results += results_of(engine, sessions[first : first + number], on_event=add_step)
            spent["ns"] += int(1e9 * (clock.now() - began))
            spent.update(rollouts=answers, tokens=sum(result.tokens for result in results))
            return [result.trajectory for result in results]

        for count in branches:  # The first requests compile, allocate, and fill caches.
            trajectories(texts[0], slots, count, Counter())
        for text in texts:
            wanted: list[Trajectory | None] = []
            for (number, count), of_way in spent.items():
                got = trajectories(text, number, count, of_way)
                wanted = wanted or got
                if got != wanted:
                    raise LopaError(
                        f"trajectories of {count} branches, {number} in flight, are others than of {branches[0]}; have "
                        "drafts exact (decode.acceptance), and the same bits in every batch (fp32 on a CPU)"
                    )
        dtype = engine.config.model.dtype
    return Measurements(
        ("concurrency", "branches"),
        [
            {"concurrency": number, "branches": str(count), **_figures(of)}
            for (number, count), of in spent.items()
        ],
        f"Groups of {answers} answers to {problems} held-out word problems, at temperature {alone.temperature:g} with "
        f"trajectories, by decoder {alone.decoder} in {dtype}, in waves of the concurrency, all ways in turns; "
        f"{clock.kind}, {torch.get_num_threads()} threads. Several branches are exact drafts, and every trajectory "
        "equals that of the first row in all fields. TPF: tokens ÷ forwards. forwards, rows (positions that were "
        "computed): per rollout.",
    )


def _figures(spent: Counter[str]) -> Row:
    seconds, rollouts, tokens = spent["ns"] / 1e9, spent["rollouts"], spent["tokens"]
    row: Row = {
        "rollouts/s": rollouts / seconds,
        "tokens/s": tokens / seconds,
        "TPF": tokens / spent["forwards"],
    }
    return row | {name: spent[name] / rollouts for name in ("forwards", "rows")}
