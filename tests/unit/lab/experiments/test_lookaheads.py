"""Lookaheads that no decoder has."""

from __future__ import annotations

from random import Random

import pytest

from lopa_lab.experiments.run.lookaheads import (
    BestFork,
    MakeLookahead,
    RandomBranch,
    RandomPositions,
    VariedLopaSession,
    WithoutAnchor,
)
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.protocol.plan import Plan
from support.fake_model import VOCABULARY, FakeModel

SETTINGS = LopaSettings(max_new_tokens=48, num_branches=4, block_size=16, ignore_eos=True)
MODEL = FakeModel(seed=5, probability_exponent=0.3)


def varied(make_lookahead: MakeLookahead, seed: str = "a") -> list[Plan]:
    plain = LopaSession([1, 2, 3], SETTINGS, VOCABULARY)
    return MODEL.plans_of(VariedLopaSession(plain, make_lookahead, Random(seed)))


def forks(plans: list[Plan]) -> list[list[tuple[tuple[int, int], ...]]]:
    return [[branch.fills for branch in plan.branches] for plan in plans]


def test_with_the_usual_lookahead_it_is_lopa() -> None:
    usual = MODEL.plans_of(LopaSession([1, 2, 3], SETTINGS, VOCABULARY))
    assert forks(varied(lambda settings, random: Lookahead(settings))) == forks(usual)
    assert max(len(plan.branches) for plan in usual) == 4


def test_the_best_fork_is_lopas_first_until_paths_part() -> None:
    plans, usual = varied(BestFork), MODEL.plans_of(LopaSession([1, 2, 3], SETTINGS, VOCABULARY))
    assert {len(plan.branches) for plan in plans} == {1}
    assert plans[1].branches[0].fills == usual[1].branches[0].fills != ()


def test_without_the_anchor_there_are_as_many_branches_and_all_are_forks() -> None:
    plans = varied(WithoutAnchor)
    assert max(len(plan.branches) for plan in plans) == 4
    assert all(branch.fills or len(plan.branches) == 1 for plan in plans for branch in plan.branches)


@pytest.mark.parametrize("make_lookahead", [RandomBranch, RandomPositions, BestFork, WithoutAnchor])
def test_every_position_is_decided(make_lookahead: MakeLookahead) -> None:
    session = VariedLopaSession(LopaSession([1], SETTINGS, VOCABULARY), make_lookahead, Random(1))
    MODEL.plans_of(session)
    assert len(session.generated) == 48 and VOCABULARY.mask_token_id not in session.generated
