"""Forks that add two tokens."""

from __future__ import annotations

from lopa_lab.word_problems import held_out_problems
from lopa_ray import LocalEngine
from lopa_ray.decoding.decoders.lopa import LopaSettings


def test_the_model_of_the_package_takes_fewer_steps_and_evaluations() -> None:
    questions = [problem.question for problem in held_out_problems(2, 8)]
    with LocalEngine.from_pretrained() as engine:
        one, two = (
            engine.generate(
                questions,
                LopaSettings(max_new_tokens=64, ranking="neg_entropy", num_branches=4, tokens_per_fork=count),
            )
            for count in (1, 2)
        )
    assert sum(result.steps for result in two) < 0.9 * sum(result.steps for result in one)
    assert sum(result.forwards for result in two) < sum(result.forwards for result in one)
