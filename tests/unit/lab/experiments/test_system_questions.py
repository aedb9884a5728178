"""What the experiments about time compute, on hand-made records."""

from __future__ import annotations

from typing import Any

import pytest

from lopa_lab.experiments import parallelism, sync
from lopa_lab.experiments.run.experiment import Experiment, ExperimentRecord
from lopa_lab.records.figure import svg_image
from support.experiment_record import experiment_record, values

PROBLEMS = 3


def words_of_plot(experiment: Experiment, of: ExperimentRecord) -> str:
    pytest.importorskip("matplotlib")
    return svg_image(lambda *axes: experiment.draw(of, *axes), experiment.plot_rows)


def columns(**per_step: float) -> dict[str, list[float]]:
    """Totals of problems of 10, 20 and 30 steps that are all alike."""
    steps = (10, 20, 30)
    return {"steps": list(steps), **{name: [value * n for n in steps] for name, value in per_step.items()}}


def a_sync_record() -> ExperimentRecord:
    """Per step, in ms. One worker: 100, of which 82 of the forward, 2 of the commit and 16 of control; two: 60."""

    def data(span: int) -> dict[str, Any]:
        one = {"forward": 0.082, "commit": 0.002, "plan": 0.010, "scatter": 0, "gather": 0, "select": 0.006}
        two = {
            "forward": 0.041,
            "commit": 0.009,
            "plan": 0.004,
            "scatter": 0.001,
            "gather": 0.002,
            "select": 0.003,
        }
        alone = two | {"commit": 0.001}
        staged = {"staged": float(span)}
        return {
            "on this machine": True,
            "pre-write ms": {"1": 0.25, "4": 1.0, "8": 2.0},
            "workers": {
                "1": {"two_phase": columns(**one, **staged), "single_phase": columns(**one, **staged)},
                "2": {"two_phase": columns(**two, **staged), "single_phase": columns(**alone, **staged)},
            },
        }

    return experiment_record("sync", PROBLEMS, *(({"span": span}, data(span)) for span in sync.SPANS))


def test_a_step_in_parts() -> None:
    found = sync.EXPERIMENT.finding(a_sync_record())
    text = values(found.text)
    # Shares of 60 ms and of 100 ms; a block of each branch is staged in every step.
    assert "blocks of 8, commit-winner takes 15.0 % of a step, pre-write 1.67 % and control 16.7 %" in text
    assert "with one worker they take 2.0 %, 2.00 % and 16.0 %" in text
    # 100 ÷ (2 × 60); (100 - 2 - 2) ÷ (2 × (60 - 9 - 1)); 100 ÷ (2 × 52); 80 ÷ (2 × 40).
    assert "Scaling efficiency is 83 %. It would be 96 % without" in text
    assert (
        "difference of +12.7 points; it is 96 % with the single-phase commit, and 100 % for forwards" in text
    )
    assert "The 2 workers share 2 cores" in text
    rows = {tuple(row[:3]): row[3:] for row in found.rows}
    assert values(rows["32", "2", "single_phase"][2]) == "0.48", "one branch stages for all"
    assert "0.87 times as long (blocks of 8)" in values(found.against_paper)
    assert (
        "16.7 % (blocks of 8) and 16.7 % (blocks of 32) of a step, and control 16.7 % and 16.7 %."
        in values(found.headline)
    )


def a_parallelism_record(gains: dict[int, float]) -> ExperimentRecord:
    """branch-parallel: 100 tokens/s and 100 ms always; task-parallel so many times as good."""

    def data(gain: float) -> dict[str, Any]:
        return {
            "on this machine": False,
            "workers": 2,
            "branch-parallel": {"seconds": [1.0, 1.1], "tokens": [100, 110], "latency": [0.1, 0.1]},
            "task-parallel": {
                "seconds": [1 / gain, 1.1 / gain],
                "tokens": [100, 110],
                "latency": [0.1 / gain] * 2,
            },
        }

    return experiment_record(
        "parallelism", PROBLEMS, *(({"concurrency": c}, data(gain)) for c, gain in gains.items())
    )


def test_where_arrangements_cross() -> None:
    of = a_parallelism_record({1: 0.5, 2: 0.5, 4: 2.0, 8: 1.5})
    found = parallelism.EXPERIMENT.finding(of)
    text = values(found.text)
    assert "branch-parallel has a latency of 100 ms" in text
    assert "where one worker is idle, 200 ms: 2.00 times" in text
    assert "task-parallel 150 tokens/s at 67 ms: 1.50 times the throughput" in text
    crossing = "is better with branch-parallel up to 2 in flight, and with task-parallel beyond"
    assert f"Throughput {crossing}" in text and f"Latency {crossing}" in text
    assert "clearly so for 4, 8 with task-parallel; clearly so for 1, 2 with branch-parallel" in text
    assert "share" not in text, "on a cluster workers have cores of their own"
    assert "latency of one request is higher with task-parallel" in found.against_paper
    image = words_of_plot(parallelism.EXPERIMENT, of)
    assert ">tokens/s<" in image and image.count(">task-parallel<") == 1
