"""`lopa bench rollouts`: groups of answers with their trajectories, by one branch and by exact drafts in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product

import torch

from lopa_lab.bench.clock import Clock
from lopa_lab.bench.decoding import results_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.word_problems import held_out_problems
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.trajectory import Trajectory
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, SettingsError
from lopa_ray.protocol.events import RequestStep

SEED = 66
"""The seed of the problems. The answers of a group have the seeds from 0 on."""


@dataclass(slots=True)
class Way:
    """A number of branches and of requests in flight, and what it took."""

    branches: int | str
    concurrency: int
    settings: GenerationSettings
    seconds: float = 0.0
    rollouts: int = 0
    tokens: int = 0
    forwards: int = 0
    rows: int = 0

    def _add_step(self, _: int, event: RequestStep) -> None:
        computed = event.plan.num_rows - event.cached_positions * len(event.plan.branches)
        self.forwards, self.rows = self.forwards + 1, self.rows + computed

    def roll_out(self, engine: LocalEngine, prompt: str, answers: int, clock: Clock) -> list[Trajectory]:
        """The trajectories of so many answers to one prompt."""
        seeds = range(answers)
        sessions = [engine.create_session(prompt, self.settings.replace(seed=seed)) for seed in seeds]
        began, results = clock.now(), []
        for first in range(0, answers, self.concurrency):
            wave = sessions[first : first + self.concurrency]
            results += results_of(engine, wave, on_event=self._add_step)
        self.seconds += clock.now() - began
        self.rollouts += answers
        self.tokens += sum(result.tokens for result in results)
        return [result.trajectory for result in results if result.trajectory is not None]

    @property
    def row(self) -> Row:
        return {
            "concurrency": self.concurrency,
            "branches": str(self.branches),
            "rollouts/s": self.rollouts / self.seconds,
            "tokens/s": self.tokens / self.seconds,
            "TPF": self.tokens / self.forwards,
            "forwards": self.forwards / self.rollouts,
            "rows": self.rows / self.rollouts,
        }


def measure_rollouts(
    config: Config, problems: int, answers: int, branches: Sequence[int | str], concurrency: Sequence[int]
) -> Measurements:
    """Groups of answers to word problems: with one branch by the rule of `config`, with several by exact drafts.

    Raises SettingsError for settings that cannot be, LopaError if a trajectory is not that of the first number of
    branches, and what engines raise.
    """
    if max(concurrency) > answers:
        raise SettingsError(
            f"--concurrency: got {max(concurrency)}; allowed: 1 to {answers}, the answers of a group"
        )
    config = config.replace(model=config.model.replace(max_num_seqs=max(concurrency)))
    alone = config.decode.replace(trajectory=True, num_branches=1)
    by_branches = {
        count: alone if count == 1 else alone.replace(num_branches=count, lookahead="verified")
        for count in branches
    }
    ways = [Way(count, number, by_branches[count]) for number, count in product(concurrency, branches)]
    clock = Clock(torch.device(config.model.device))
    with LocalEngine.from_config(config) as engine:
        dtype = engine.config.model.dtype
        questions = [problem.question for problem in held_out_problems(SEED, problems)]
        for way in ways:  # The first requests compile, allocate, and fill caches.
            Way(way.branches, way.concurrency, way.settings).roll_out(
                engine, questions[0], way.concurrency, clock
            )
        for question in questions:
            reference = ways[0].roll_out(engine, question, answers, clock)
            for way in ways[1:]:
                _check_equal(reference, way, way.roll_out(engine, question, answers, clock))
    return Measurements(
        ("concurrency", "branches"),
        [way.row for way in ways],
        f"Groups of {answers} answers to {problems} held-out word problems, at temperature {alone.temperature:g} with "
        f"trajectories, by decoder {alone.decoder} in {dtype}, in waves of the concurrency, all ways in "
        f"turns; {clock.kind}, {torch.get_num_threads()} threads. Several branches are exact drafts, and every "
        "trajectory equals that of the first row in all fields. TPF: tokens ÷ forwards of requests. forwards, rows "
        "(positions that were computed): per rollout.",
    )


def _check_equal(wanted: Sequence[Trajectory], way: Way, got: Sequence[Trajectory]) -> None:
    for seed, (one, other) in enumerate(zip(wanted, got, strict=True)):
        differing = [
            field.name
            for field in fields(Trajectory)
            if getattr(one, field.name) != getattr(other, field.name)
        ]
        if differing:
            raise LopaError(
                f"{way.branches} branches, {way.concurrency} in flight: the trajectory of seed {seed} differs in "
                f"{', '.join(differing)}; drafts have to be exact (decode.acceptance), and bits those of every batch "
                "(fp32 on a CPU)"
            )
