"""What each experiment computes, on hand-made cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from lopa_lab.experiments import ablation, beyond, open_ended, tfo, verified
from lopa_lab.experiments.predictor import Observed, ObservedSession
from lopa_lab.experiments.run.experiment import ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Outcomes
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.result import GenerationResult
from support.experiment_record import experiment_record, values
from support.fake_model import VOCABULARY, FakeModel


def outcomes(steps: list[int], tokens: int = 40, correct: int = 1) -> dict[str, Any]:
    count = len(steps)
    return asdict(Outcomes([tokens] * count, steps, steps, [correct] * count))


def tfo_finding(lopa: list[int], anchor: list[int], orders: Sequence[int]) -> Finding:
    """LoPA's and the anchor's steps of each problem, and those of all problems in each random order."""
    random = [outcomes([steps] * len(lopa)) for steps in orders]
    points = (
        ({"order": "lopa"}, outcomes(lopa)),
        ({"order": "anchor"}, outcomes(anchor)),
        ({"order": "random", "first": 0}, {"orders": random}),
    )
    return tfo.EXPERIMENT.finding(experiment_record("tfo", len(lopa), *points))


def verified_record(problems: int, steps: dict[str, int], answers: dict[str, list[str]]) -> ExperimentRecord:
    """Every problem takes `steps` of what decodes; by default one branch takes 20, and the others 8."""
    points = []
    for point in verified.EXPERIMENT.points():
        decoder = str(point["decoder"])
        data = outcomes([steps.get(decoder, 20 if decoder == verified.ONE else 8)] * problems)
        points.append((dict(point), data | {"answers": answers.get(decoder, ["a"] * problems)}))
    return experiment_record("verified", problems, *points)


def test_drafts_of_verified_lookahead_against_one_branch_and_lopa() -> None:
    """One branch takes 20 steps, LoPA 10 and drafts 8; answers are compared one by one."""
    found = verified.EXPERIMENT.finding(verified_record(10, {verified.LOPA: 10}, {}))
    drafts = "exact drafts with 8 branches have 2.50 times the TPF of one branch, with 10 of 10 answers equal"
    relaxed = "relaxed ones have 1.25 times that of LoPA with 4, at +0.0 points against one branch."
    assert values(found.headline) == f"With blocks of 32, {drafts}; {relaxed}"
    assert values(found.text).startswith(f"{values(found.headline)} With blocks of 16, {drafts}; {relaxed}")
    assert "settled has 2.50 times the TPF of one without, at +0.0 points." in values(found.text)
    assert len(found.rows) == 13, "the usual blocks and threshold"
    other = verified_record(10, {verified.LOPA: 10}, {verified.EXACT: ["a"] * 9 + ["b"]})
    assert "with 9 of 10 answers equal" in verified.EXPERIMENT.finding(other).headline


def test_lopa_among_random_orders() -> None:
    """Two problems, orders of 20, 10, 10 and 5 steps each; LoPA takes 5 and 10."""
    found = tfo_finding([5, 10], [20, 20], (20, 10, 10, 5))
    # TPF of the orders: 2, 4, 4, 8; LoPA: 8 and 4, above 7/8 and 1/2 of them.
    assert "4.00 times the TPF of the slowest: 8.00" in values(found.text)
    assert "faster than 69 [50 to 88] %" in found.text
    cells = {row[0]: row[1:] for row in found.rows}
    assert cells["mean of the orders"][0].startswith("4.50 ") and cells["LoPA"][0].startswith("6.00 ")
    assert cells["worst of the orders"] == ["2.00 [2.00 to 2.00]", "–"]


@pytest.mark.parametrize(("problems", "says"), [(9, False), (10, True)])
def test_few_problems_have_no_shares_of_a_gain_and_meet_no_bar(problems: int, says: bool) -> None:
    found = tfo_finding([6] * problems, [20] * problems, (20, 10, 5))
    assert ("of the way from the mean to the best" in found.text) == says
    assert ("of what LoPA gains over a single branch" in found.against_paper) == says
    points = [
        (point, outcomes([20 if point["variant"] == beyond.LOPA else 10] * problems))
        for point in beyond.EXPERIMENT.points()
    ]
    found = beyond.EXPERIMENT.finding(experiment_record("beyond", problems, *points))
    assert ("meet the bar in every cell" in found.headline) == says
    assert {row[-1] for row in found.rows} == {"", "yes" if says else "–"}


def test_answers_of_verified_lookahead_are_their_tokens_and_ends() -> None:
    result = GenerationResult(
        [1, 2], "a", "stop", tokens=2, steps=1, rule_steps=1, forwards=1, seconds=0.0, prompt_tokens=1
    )
    others = [replace(result, token_ids=[1, 3]), replace(result, finish_reason="length")]
    assert len({verified.answer_fingerprint(each) for each in (result, *others)}) == 3
    assert verified.answer_fingerprint(replace(result, steps=9)) == verified.answer_fingerprint(result)


def test_observed_steps() -> None:
    """Higher scores, more accepted tokens; a branch without masks beats all; equal branches say nothing."""
    observed = Observed(("mean", "bottom(0.1)"))
    observed.observe([[0.5, 0.5], [0.9]], [2, 2])
    assert observed.steps == 0
    observed.observe([[0.2, 0.8], [0.6, 0.6], []], [1, 2, 5])
    assert (observed.steps, observed.best) == (1, 5)
    assert observed.accepted == {"mean": 5, "bottom(0.1)": 5}
    observed.observe([[0.1, 0.9], [0.4, 0.4]], [3, 1])
    assert observed.accepted == {"mean": 5 + 3, "bottom(0.1)": 5 + 1}
    assert observed.rank_correlation == pytest.approx({"mean": 2.0, "bottom(0.1)": 0.0})


def test_accepted_tokens_of_the_winner_are_what_the_step_decides() -> None:
    settings = LopaSettings(max_new_tokens=32, num_branches=4, block_size=16, ignore_eos=True)
    model = FakeModel(seed=5, probability_exponent=0.3)
    seen: list[list[int]] = []

    class Watched(Observed):
        def observe(self, scores: Any, accepted: Any) -> None:
            seen.append(list(accepted))

    session = ObservedSession(LopaSession([1, 2], settings, VOCABULARY), Watched(("mean",)))
    while not session.finished:
        plan = session.plan()
        outcome = session.advance(model.reports(plan))
        assert seen[-1][outcome.winner] == len(outcome.adopted) + len(outcome.filled)


def test_what_is_left_of_the_gain() -> None:
    tpf = {
        ablation.LOPA: 8.0,
        ablation.NO_LOOKAHEAD: 4.0,
        ablation.ONE_BRANCH: 7.0,
        ablation.RANDOM_WINNER: 6.0,
    }
    figures = {name: np.full(9, value) for name, value in tpf.items()}
    assert "has 75 [75 to 75] %" in ablation._gain(figures) and "winner 50 [50 to 50] %" in ablation._gain(
        figures
    )
    assert ablation._gain({name: np.full(9, 4.0) for name in tpf}) == ""


def test_texts_are_compared_by_position_and_pair() -> None:
    assert open_ended.equal_tokens([1, 2, 3], [1, 9, 3, 4]) == (2, 4)
    assert open_ended.equal_tokens([1], []) == (0, 1)
    assert open_ended.count_n_grams([1, 2, 1, 2, 3]) == (3, 4)
    assert open_ended.count_n_grams([1]) == (0, 0)


def test_an_open_prompt_has_no_question_of_its_own() -> None:
    story = "Mia has 6 pens. She gives 2 away."
    assert open_ended.open_prompt(f"{story} How many are left?") == f"{story} How much is that?"
    assert open_ended.open_prompt("How many pens are left?") is None
