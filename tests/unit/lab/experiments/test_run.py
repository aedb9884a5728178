"""What all experiments share: figures with intervals, kept points, records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lopa_lab.experiments.branches import aup
from lopa_lab.experiments.run.experiment import ExperimentRecord
from lopa_lab.experiments.run.outcomes import Outcomes
from lopa_lab.experiments.run.runner import weights_fingerprint
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.records.intervals import Estimate, Resamples, estimate
from lopa_lab.records.points_log import MeasuredPoint, PointsLog
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.errors import SettingsError

SETUP = Setup(
    problems=3,
    seed=2,
    problem_texts="a1",
    model="demo",
    weights=None,
    settings={"decode": {"block_size": 32}},
)


def measured(number: int) -> MeasuredPoint:
    return MeasuredPoint(point={"n": number}, data={"steps": [number]})


def weight(score: float, best: float) -> float:
    return math.exp(-3 * (1 - score / best))


@pytest.mark.parametrize(
    ("points", "best", "area"),
    [
        ([(3.0, 80.0)], 90.0, 240),
        ([(5.0, 78.0), (2.0, 80.0)], 80.0, 2 * 80 + 3 * (80 + 78 * weight(78, 80)) / 2),
        # More than five points below the first one it does not count.
        ([(2.0, 80.0), (9.0, 74.9)], 80.0, 160),
        ([(2.0, 80.0), (9.0, 75.0)], 80.0, 160 + 7 * (80 + 75 * weight(75, 80)) / 2),
        # The first point's own weight counts in its trapezoid, not in its rectangle.
        ([(2.0, 80.0), (4.0, 90.0)], 90.0, 160 + 80 * weight(80, 90) + 90),
        ([(2.0, 0.0), (4.0, 0.0)], 0.0, 0),
    ],
)
def test_aup_adds_weighted_trapezoids(points: list[tuple[float, float]], best: float, area: float) -> None:
    assert aup(points, best) == pytest.approx(area)


def test_aup_needs_points() -> None:
    with pytest.raises(ValueError):
        aup([], 1.0)


def test_figures_pair_the_problems() -> None:
    resamples = Resamples(4, count=500)
    steps = [10, 20, 40, 80]
    once, twice = (
        Outcomes([40] * 4, steps, steps, [1, 1, 0, 0]),
        Outcomes([80] * 4, steps, steps, [1, 1, 0, 0]),
    )
    ratio = estimate(twice.tpf(resamples) / once.tpf(resamples))
    assert ratio == Estimate(2.0, 2.0, 2.0)
    assert estimate(once.tpf(resamples)).value == pytest.approx(160 / 150)
    assert estimate(once.score(resamples)).value == 50.0
    assert estimate(once.forwards_per_token(resamples)).value == pytest.approx(150 / 160)


def test_a_figure_that_does_not_exist() -> None:
    resamples = Resamples(2, count=50)
    quotient = resamples.quotient([1, 1], [0, 2])
    assert quotient[0] == 1.0 and np.isnan(quotient).any()
    assert math.isfinite(estimate(quotient).high)
    with pytest.raises(ValueError):
        estimate(resamples.quotient([1, 1], [0, 0]))
    with pytest.raises(ValueError):
        Resamples(0)


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "run" / "points.jsonl"
    begun = PointsLog(path, SETUP)
    begun.append(measured(1))
    begun.append(measured(2))
    path.write_bytes(path.read_bytes()[:-9])  # killed while it wrote
    again = PointsLog(path, SETUP)
    assert again.started == begun.started
    assert {"n": 1} in again and {"n": 2} not in again
    again.append(measured(2))
    assert PointsLog(path, SETUP)[{"n": 2}] == measured(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"decode": {"block_size": 16}}}, "block_size: 32 then, 16 now"),
        ({"seed": 3}, "seed: 2 then, 3 now"),
        ({"problem_texts": "b2"}, "problem_texts"),
    ],
)
def test_another_question_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    PointsLog(path, SETUP)
    with pytest.raises(SettingsError, match=message):
        PointsLog(path, SETUP.model_copy(update=change))


def test_files_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text("{}\n")
    with pytest.raises(SettingsError, match="damaged"):
        PointsLog(path, SETUP)
    with pytest.raises(SettingsError, match="another folder"):
        PointsLog(path / "below", SETUP)
    with pytest.raises(SettingsError, match="no record"):
        ExperimentRecord.read(path)
    with pytest.raises(SettingsError, match="name a record"):
        ExperimentRecord.read(tmp_path / "none.json")


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1" * 100)
    before = weights_fingerprint(ModelSettings(path=str(tmp_path)))
    assert weights_fingerprint(ModelSettings(path=str(tmp_path))) == before
    weights.write_bytes(b"1" * 99 + b"2")
    assert weights_fingerprint(ModelSettings(path=str(tmp_path))) != before
    assert weights_fingerprint(ModelSettings(path="demo")) is not None
    assert weights_fingerprint(ModelSettings(path="org/name@0123456")) is None
