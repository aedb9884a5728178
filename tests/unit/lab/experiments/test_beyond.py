"""Lookaheads with other forks and other winners, and the bar that they are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from lopa_lab.experiments import beyond
from lopa_lab.experiments.run.lookaheads import (
    DistantForks,
    ForksOfForks,
    MakeLookahead,
    SecondTokens,
    VariedLopaSession,
)
from lopa_lab.experiments.run.winner_rules import (
    BranchValue,
    ByValue,
    RandomWinner,
    WinnerRecorder,
    expected_fills,
    fit_predictor,
    summed_probability,
)
from lopa_lab.records.intervals import Estimate
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport
from support.fake_model import VOCABULARY, FakeModel

SETTINGS = LopaSettings(max_new_tokens=48, num_branches=6, block_size=16, ignore_eos=True, top_logprobs=2)


class RankedModel(FakeModel):
    """The second-best token is the one behind the best, and more probable the further back a position lies."""

    def report(self, plan: Plan, branch: int) -> BranchReport:
        report = super().report(plan, branch)
        second = (report.tokens + 1) % VOCABULARY.mask_token_id
        return replace(
            report,
            top_tokens=np.stack([report.tokens, second], 1),
            top_logprobs=np.stack([-0.5 / report.positions, -9.0 / report.positions], 1).astype(np.float32),
        )


MODEL = RankedModel(seed=5, probability_exponent=0.3)


def varied(make_lookahead: MakeLookahead) -> list[Plan]:
    plain = LopaSession([1, 2, 3], SETTINGS, VOCABULARY)
    return MODEL.plans_of(VariedLopaSession(plain, make_lookahead, Random(1)))


@pytest.mark.parametrize("make_lookahead", [ForksOfForks, DistantForks, SecondTokens])
def test_a_whole_decode_evaluates_no_more_branches_than_lopa(make_lookahead: MakeLookahead) -> None:
    plans = varied(make_lookahead)
    assert 1 < max(len(plan.branches) for plan in plans) <= SETTINGS.branch_limit
    for plan in plans:
        assert len({branch.fills for branch in plan.branches}) == len(plan.branches), "no branch twice"
        for branch in plan.branches:
            positions = [position for position, _ in branch.fills]
            assert len(set(positions)) == len(positions)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            expected_fills,
            lambda probabilities: np.count_nonzero(probabilities > SETTINGS.confidence_threshold),
        ),
        (summed_probability, lambda probabilities: probabilities.sum().item()),
    ],
)
def test_the_winner_has_most_of_the_value(value: BranchValue, expected: Callable[[Any], float]) -> None:
    plain = LopaSession([1, 2, 3], SETTINGS, VOCABULARY)
    session = VariedLopaSession(plain, lambda settings, random: ByValue(settings, value), Random(1))
    compared = 0
    while not session.finished:
        plan = session.plan()
        reports = MODEL.reports(plan)
        winner = session.advance(reports).winner
        values = [
            len(branch.fills) + expected(report.probabilities)
            for branch, report in zip(plan.branches, reports, strict=True)
        ]
        if all(len(report.scores) for report in reports):
            assert values[winner] == pytest.approx(max(values))
            compared += len(set(values)) > 1
    assert compared


def test_a_predictor_is_fitted_on_decodes() -> None:
    plain = LopaSession([1, 2, 3], SETTINGS, VOCABULARY)
    recorder = WinnerRecorder(plain, RandomWinner, Random(3))
    plans = MODEL.plans_of(recorder)
    assert len(recorder.winners) == len(recorder.decided) == len(plans)
    assert sum(recorder.decided) == 48
    predictor = fit_predictor([recorder])
    assert np.isfinite(predictor.weights).all() and predictor.weights.any()
    assert len(varied(lambda settings, random: ByValue(settings, predictor))) > 1


SAME = Estimate(1.0, 0.98, 1.02), Estimate(0.0, -1.0, 1.0)
FASTER = Estimate(1.2, 1.1, 1.3), Estimate(-0.5, -2.0, 1.0)
FASTER_AND_WORSE = Estimate(1.2, 1.1, 1.3), Estimate(-3.0, -5.0, -1.0)
BETTER = Estimate(0.99, 0.97, 1.01), Estimate(3.0, 1.0, 5.0)
EQUAL = Estimate(-0.5, -1.5, 0.5)
SLOWER_AND_BETTER = Estimate(0.9, 0.88, 0.92), Estimate(3.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("cells", "points_of_all", "meets"),
    [
        ([FASTER] * 4, EQUAL, True),
        ([FASTER] * 4, Estimate(-1.5, -2.5, -0.5), False),
        ([BETTER] * 4, EQUAL, True),
        ([FASTER] * 3 + [SAME], EQUAL, False),
        ([FASTER] * 3 + [FASTER_AND_WORSE], EQUAL, False),
        ([FASTER] * 2 + [BETTER] * 2, EQUAL, False),
        ([SLOWER_AND_BETTER] * 4, EQUAL, False),
    ],
)
def test_the_bar(cells: list[tuple[Estimate, Estimate]], points_of_all: Estimate, meets: bool) -> None:
    assert beyond.meets_bar(cells, points_of_all) is meets
