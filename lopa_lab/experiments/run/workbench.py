"""Workbench: the model, the settings and the problems that an experiment measures with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ray

from actors.connection.ray_connection import LOCAL_RAY, connect_to_ray, ray_address
from cluster.batch.open_engine import open_engine
from cluster.command_line.progress import ShownTask
from lopa_lab.bench.decoding import results_of, solved
from lopa_lab.experiments.run.lookaheads import MakeSession
from lopa_lab.experiments.run.outcomes import Name, StepTotals
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.word_problems import Problem, held_out_problems
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.events import RequestStep

if TYPE_CHECKING:
    from lopa_ray.engine.local import LocalEngine


class Workbench(ExitStack):
    """Use it as a context manager: what `engine` and `groups` open is closed at the end."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__()
        self.config = config
        self.setup = setup
        self._groups: dict[tuple[int, ...], list[Engine]] = {}

    @cached_property
    def engine(self) -> LocalEngine:
        """The engine of this process. As many requests are in flight together as `model.max_num_seqs` says."""
        from lopa_ray.engine.local import LocalEngine

        engine = self.enter_context(open_engine(self.config, local=True))
        assert isinstance(engine, LocalEngine)
        return engine

    def groups(self, workers: Sequence[int], *, requests: int = 1) -> list[Engine]:
        """Groups on Ray with so many workers each, and slots for at least so many requests each.

        All of them are open at once, so that measurements can take turns, and stay open until the end. Raises what
        engines raise.
        """
        key = tuple(workers)
        if key not in self._groups:
            group, model = self.config.group, self.config.model
            model = model.replace(max_num_seqs=max(model.max_num_seqs, requests))
            self._connect(math.ceil(sum(workers) * group.tensor_parallel_size * group.num_cpus))
            configs = [
                self.config.replace(model=model, group=group.replace(num_workers=count)) for count in workers
            ]
            self._groups[key] = [self.enter_context(open_engine(config, local=False)) for config in configs]
        return self._groups[key]

    def _connect(self, num_cpus: int) -> None:
        """Connect before the first group, which would start a Ray that is only large enough for itself."""
        if not ray.is_initialized():
            connect_to_ray(ray_address(), num_cpus=num_cpus)
            self.callback(ray.shutdown)

    def several_workers(self, why: str) -> int:
        """The number of workers of the configuration. Raises SettingsError, with the reason, for a single one."""
        workers = self.config.group.num_workers
        if workers < 2:
            raise SettingsError(f"group.num_workers: got {workers}; {why}: set 2 or more")
        return workers

    @property
    def on_this_machine(self) -> bool:
        """Whether groups run on a Ray that is started for them here."""
        return ray_address() == LOCAL_RAY

    @cached_property
    def problems(self) -> list[Problem]:
        """Held-out problems of the model in the package."""
        return held_out_problems(self.setup.seed, self.setup.problems)

    def settings(self, **changes: Any) -> GenerationSettings:
        """The run's decode settings with changes; `decoder` may be one of them. Raises SettingsError."""
        return Config.parse(self.config.given(), {"decode": changes}).decode

    def decode(
        self,
        settings: GenerationSettings,
        prompts: Sequence[str] | None = None,
        make_session: MakeSession = lambda session, index: session,
        on_event: Callable[[int, RequestStep], object] = lambda index, event: None,
    ) -> list[GenerationResult]:
        """The results of prompts, by default the questions of the run's problems. `make_session` puts another session
        into the place of a usual one; `on_event` gets each step with the index of its prompt.

        Raises the first error that ends a request.
        """
        prompts = [problem.question for problem in self.problems] if prompts is None else prompts
        usual = (self.engine.create_session(prompt, settings) for prompt in prompts)
        sessions = [make_session(session, index) for index, session in enumerate(usual)]
        with ShownTask("Decoding", len(sessions), "problems") as task:

            def on_each(index: int, event: RequestStep) -> None:
                on_event(index, event)
                if event.outcome.finish_reason is not None:
                    task.advance()

            return results_of(self.engine, sessions, on_event=on_each)

    def decode_problems(
        self,
        settings: GenerationSettings,
        make_session: MakeSession = lambda session, index: session,
        problems: Sequence[Problem] | None = None,
    ) -> dict[str, Any]:
        """Decode and grade problems, by default the run's; returns what `Outcomes` are made of. See `decode`."""
        problems = self.problems if problems is None else problems
        return graded(
            problems, self.decode(settings, [problem.question for problem in problems], make_session)
        )

    def totals_in_turns(
        self, decoders: Mapping[Name, Callable[[str], Mapping[str, float]]]
    ) -> dict[Name, StepTotals]:
        """Decode each question by each function, which returns the sums of its steps; they take turns, question by
        question."""
        totals = {name: StepTotals() for name in decoders}
        # The first problem is decoded once more, before the others, to warm up.
        with ShownTask("Decoding", 1 + len(self.problems), "problems") as task:
            for number, problem in enumerate([self.problems[0], *self.problems]):
                for name, decode in decoders.items():
                    sums = decode(problem.question)
                    if number:
                        totals[name].add(sums)
                task.advance()
        return totals


def graded(problems: Sequence[Problem], results: Sequence[GenerationResult]) -> dict[str, Any]:
    """The data of `Outcomes`, from the results of problems."""
    return {
        "tokens": [result.tokens for result in results],
        "steps": [result.steps for result in results],
        "forwards": [result.forwards for result in results],
        "correct": [int(right) for right in solved(problems, results)],
    }
