"""Log-likelihoods on a group of branch workers: the same numbers as in one process, also after workers are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.engine.base import Engine
from lopa_ray.engine.likelihood import LikelihoodRequest, LogLikelihood, log_likelihoods
from lopa_ray.engine.local import LocalEngine
from support.group_under_test import ReferenceResults, group_with_faults
from support.tiny_model import PROMPTS, tiny_config

REQUESTS = [
    LikelihoodRequest(prompt, target, check_greedy)
    for prompt in PROMPTS
    for target, check_greedy in (([8], False), ([8, 9, 10], True), ([*range(30, 55)], False))
]


def answers(engine: Engine) -> list[LogLikelihood | Exception]:
    answer_of = dict(log_likelihoods(engine, REQUESTS, mc_num=40, seed=2))
    return [answer_of[index] for index in range(len(REQUESTS))]


@pytest.mark.slow
@pytest.mark.long
def test_two_workers_give_the_same_bits_though_they_are_lost(
    tmp_path: Path, reference: ReferenceResults
) -> None:
    expected = answers(LocalEngine.from_config(tiny_config()))
    assert all(isinstance(answer, LogLikelihood) for answer in expected)
    with group_with_faults(tmp_path, reference, num_workers=2) as (group, faults):
        assert answers(group.engine) == expected
        for lost in (1, 2):  # then no worker is left, and another group goes on from the client's journals
            group.wait_for_workers(2)
            faults.inject("forward", lost)
            assert answers(group.engine) == expected
            assert not faults.pending
