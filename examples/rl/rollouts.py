"""Rollouts: answers to training problems with their rewards, and the evaluation on other problems."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from lopa_lab.word_problems import Problem, held_out_problems, is_correct
from lopa_lab.word_problems.generator import is_held_out, make_problem
from lopa_ray import GenerationResult, Trajectory
from lopa_ray.engine.base import Engine


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to one problem, and the reward of each: 1 if it is right, else 0."""

    answers: list[Trajectory]
    rewards: list[float]


def roll_out(engine: Engine, seed: int, update: int, problems: int, answers: int) -> list[Group]:
    """So many answers at temperature 1 to each of so many training problems, which depend on seed and update alone.
    Raises what ends a request."""
    drawn = draw_problems(random.Random(f"{seed} {update}"), problems)
    repeated = [problem for problem in drawn for _ in range(answers)]
    results = _answer(engine, repeated, update * len(repeated), trajectory=True)
    groups: list[Group] = []
    for problem in drawn:
        of_problem = list(itertools.islice(results, answers))
        rewards = [float(is_correct(problem, result.text or "")) for result in of_problem]
        trajectories = [cast(Trajectory, result.trajectory) for result in of_problem]
        groups.append(Group(trajectories, rewards))
    return groups


def _answer(
    engine: Engine, problems: Sequence[Problem], first_seed: int, *, trajectory: bool = False
) -> Iterator[GenerationResult]:
    """An answer at temperature 1 to each problem, each with its own seed."""
    sessions = [
        engine.create_session(problem.question, temperature=1.0, seed=seed, trajectory=trajectory)
        for seed, problem in enumerate(problems, first_seed)
    ]
    results = dict(engine.run(sessions))
    for index in range(len(sessions)):
        if isinstance(result := results[index], Exception):
            raise result
        yield result


def draw_problems(rng: random.Random, count: int) -> list[Problem]:
    """Different problems in held-out words, none of which `evaluate` asks."""
    problems: dict[Problem, None] = {}
    while len(problems) < count:
        problem = make_problem(rng, held_out_words=True)
        if not is_held_out(problem.question):
            problems[problem] = None
    return list(problems)


def evaluate(engine: Engine, seed: int, count: int) -> dict[str, float]:
    """Of so many problems in held-out words: the share that the engine solves when it draws its answers as in training
    (`sampled`), and greedily (`greedy`); and its tokens per forward in greedy answers, tokens of all ÷ steps of all."""
    problems = held_out_problems(seed, count, held_out_words=True)
    greedy: list[GenerationResult] = engine.generate([problem.question for problem in problems])
    right = {
        name: sum(is_correct(p, result.text or "") for p, result in zip(problems, results, strict=True))
        / count
        for name, results in (("sampled", _answer(engine, problems, 0)), ("greedy", greedy))
    }
    return right | {"tpf": sum(result.tokens for result in greedy) / sum(result.steps for result in greedy)}
