"""Rollouts: answers to training problems with their rewards, and the evaluation on other problems."""

from __future__ import annotations

import random
from collections.abc import Sequence
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
    """Answers at temperature 1 to training problems that the engine does not solve without chance. What it solves has
    little to teach: there, right and wrong answers differ by accidents of sampling, and learning from these makes a
    model surer and nothing else.

    `problems`: how many are drawn, by seed and update alone; `answers`: to each of the problems that are left. Raises
    what ends a request.
    """
    drawn = draw_problems(random.Random(f"{seed} {update}"), problems)
    missed = [problem for problem, right in zip(drawn, _solved(engine, drawn)[0], strict=True) if not right]
    repeated = [problem for problem in missed for _ in range(answers)]
    sessions = [
        engine.create_session(problem.question, temperature=1.0, seed=index, trajectory=True)
        for index, problem in enumerate(repeated, update * problems * answers)
    ]
    groups = {problem: Group([], []) for problem in missed}
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
    right, results = _solved(engine, held_out_problems(seed, count, held_out_words=True))
    tpf = sum(result.tokens for result in results) / sum(result.steps for result in results)
    return {"solved": sum(right) / count, "tpf": tpf}


def _solved(engine: Engine, problems: Sequence[Problem]) -> tuple[list[bool], list[GenerationResult]]:
    results: list[GenerationResult] = engine.generate([problem.question for problem in problems])
    return [is_correct(p, result.text or "") for p, result in zip(problems, results, strict=True)], results
