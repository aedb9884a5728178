"""Rollouts: answers to training problems with their rewards, and the evaluation on problems in held-out words."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from lopa_lab.word_problems import Problem, held_out_problems, is_correct, training_problems
from lopa_lab.word_problems.told_stories import make_told_problem
from lopa_ray import GenerationResult, Trajectory
from lopa_ray.engine.base import Engine

TOLD_SHARE = 0.5
"""The share of training problems that are in the grammar's wordings."""
THRESHOLDS = (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.9)
"""Confidence thresholds of the answers to a training problem, which differ in what they decide at once."""


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to one problem, and the reward of each: 1 if it is right, else 0."""

    answers: list[Trajectory]
    rewards: list[float]


def roll_out(engine: Engine, seed: int, update: int, problems: int) -> list[Group]:
    """An answer by each of `THRESHOLDS` to each of so many problems, which depend on seed and update alone. None is
    held out or has a held-out wording, so none is one of `evaluate`. Raises what ends a request."""
    stream = training_problems(seed * 1_000_003 + update, (TOLD_SHARE, make_told_problem))
    drawn = [(problem, each) for problem in itertools.islice(stream, problems) for each in THRESHOLDS]
    sessions = [
        engine.create_session(p.question, confidence_threshold=each, trajectory=True) for p, each in drawn
    ]
    groups: dict[Problem, Group] = {problem: Group([], []) for problem, _ in drawn}
    results = dict(engine.run(sessions))
    for index, (problem, _) in enumerate(drawn):
        if isinstance(result := results[index], Exception):
            raise result
        assert result.trajectory is not None
        groups[problem].answers.append(result.trajectory)
        groups[problem].rewards.append(float(is_correct(problem, result.text or "")))
    return list(groups.values())


def evaluate(engine: Engine, seed: int, count: int) -> dict[str, float]:
    """The share of so many problems in held-out words that the engine solves without chance, and its tokens per
    forward: tokens of all answers ÷ steps of all."""
    problems = held_out_problems(seed, count, held_out_words=True)
    results: list[GenerationResult] = engine.generate([problem.question for problem in problems])
    solved = sum(is_correct(p, result.text or "") for p, result in zip(problems, results, strict=True))
    tpf = sum(result.tokens for result in results) / sum(result.steps for result in results)
    return {"solved": solved / count, "tpf": tpf}
