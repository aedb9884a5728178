"""Rollouts: answers to training problems with their rewards, and the evaluation on other problems."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    sessions = [
        engine.create_session(problem.question, temperature=1.0, seed=index, trajectory=True)
        for index, problem in enumerate(repeated, update * len(repeated))
    ]
    groups = {problem: Group([], []) for problem in drawn}
    for problem, (_, result) in zip(repeated, sorted(engine.run(sessions)), strict=True):
        if isinstance(result, Exception):
            raise result
        assert result.trajectory is not None
        groups[problem].answers.append(result.trajectory)
        groups[problem].rewards.append(float(is_correct(problem, result.text or "")))
    return list(groups.values())


def draw_problems(rng: random.Random, count: int) -> list[Problem]:
    """Different problems in held-out words, which no problem of `evaluate` is one of."""
    problems: dict[Problem, None] = {}
    while len(problems) < count:
        problem = make_problem(rng, held_out_words=True)
        if not is_held_out(problem.question):
            problems[problem] = None
    return list(problems)


def evaluate(engine: Engine, seed: int, count: int) -> dict[str, float]:
    """The share of so many problems in held-out words that the engine solves without chance, and its tokens per
    forward: tokens of all answers ÷ steps of all."""
    problems = held_out_problems(seed, count, held_out_words=True)
    results: list[GenerationResult] = engine.generate([problem.question for problem in problems])
    solved = sum(is_correct(p, result.text or "") for p, result in zip(problems, results, strict=True))
    tpf = sum(result.tokens for result in results) / sum(result.steps for result in results)
    return {"solved": solved / count, "tpf": tpf}
