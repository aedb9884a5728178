"""Forks that add two tokens."""

from __future__ import annotations

import pytest

from lopa_lab.word_problems import held_out_problems
from lopa_ray import LocalEngine
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.errors import SettingsError
from support.fake_model import FakeModel
from support.fake_session import decode

MODEL = FakeModel(seed=5, probability_exponent=0.3)


@pytest.mark.parametrize(
    "settings",
    [
        LopaSettings(max_new_tokens=40, num_branches=6, block_size=16, ignore_eos=True),
        BlockDiffusionSettings(max_new_tokens=40, num_branches=6, block_size=8, ignore_eos=True),
    ],
)
def test_a_fork_adds_two_tokens(settings: LookaheadSettings) -> None:
    one, two = (decode([1, 2, 3], settings.replace(tokens_per_fork=count), MODEL)[1] for count in (1, 2))
    assert len(two) <= len(one)
    assert max(len(step.outcome.adopted) for step in one) == 1
    assert max(len(step.outcome.adopted) for step in two) == 2


def test_a_last_mask_is_a_fork_alone() -> None:
    settings = LopaSettings(max_new_tokens=1, num_branches=3, confidence_threshold=1.0, tokens_per_fork=2)
    _, steps = decode([1], settings.replace(decoded_token_threshold=0.0), MODEL)
    assert {len(branch.fills) for step in steps for branch in step.plan.branches} <= {0, 1}


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


@pytest.mark.parametrize("wrong", [0, 3, 1.5])
def test_other_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(SettingsError, match="tokens_per_fork"):
        LopaSettings(tokens_per_fork=wrong)
