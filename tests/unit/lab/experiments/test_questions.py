"""What each experiment computes, on hand-made cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lopa_lab.experiments import ablation, open_ended, tfo, verified
from lopa_lab.experiments.run.experiment import ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Outcomes
from support.experiment_record import experiment_record, values


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


def test_bars_of_verified_lookahead() -> None:
    """LoPA takes 10 steps: relaxed drafts have 1.25 times its TPF, which is enough without settled choices only."""
    found = verified.EXPERIMENT.finding(verified_record(10, {verified.LOPA: 10}, {}))
    text = values(found.text)
    assert (
        "exact drafts with 16 branches have 2.50 times the TPF of one branch (bar: at least 1.9; met)" in text
    )
    assert "relaxed drafts with 8 branches have 1.25 times the TPF of LoPA with 4 at +0.0 points" in text
    assert "(bar: at least 1.4 at no less than -2.5 points; missed)" in text
    assert "7 of 8 bars are met" in text and "7 of 8 bars are met" in found.headline
    assert "10, 10, 10 of 10 answers" in text
    assert text.startswith("This is one small model") and "one small model" in found.headline


def test_answers_of_verified_lookahead_are_compared_one_by_one() -> None:
    record = verified_record(10, {verified.LOPA: 10}, {verified.EXACT: ["a"] * 9 + ["b"]})
    found = verified.EXPERIMENT.finding(record)
    assert "9, 9, 9 of 10 answers are equal to those of one branch (bar: all; missed)" in found.text
    assert {row[-1] for row in found.rows if row[1] == verified.EXACT} == {"9 of 10"}
    assert {row[-1] for row in found.rows if row[1] != verified.EXACT} == {""}


def test_lopa_among_random_orders() -> None:
    """Two problems, orders of 20, 10, 10 and 5 steps each; LoPA takes 5 and 10."""
    found = tfo_finding([5, 10], [20, 20], (20, 10, 10, 5))
    # TPF of the orders: 2, 4, 4, 8; LoPA: 8 and 4, above 7/8 and 1/2 of them.
    assert "4.00 times the TPF of the slowest: 8.00" in values(found.text)
    assert "more than 69 [50 to 88] %" in found.text
    cells = {row[0]: row[1:] for row in found.rows}
    assert cells["mean of the orders"][0].startswith("4.50 ") and cells["LoPA"][0].startswith("6.00 ")
    assert cells["worst of the orders"] == ["2.00 [2.00 to 2.00]", "–"]


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
