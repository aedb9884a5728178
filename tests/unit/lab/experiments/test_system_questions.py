"""What the experiments about time compute, on hand-made records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cluster.cli import app
from lopa_lab.experiments import parallelism, sync
from lopa_lab.experiments.run.experiment import Experiment, ExperimentRecord
from lopa_lab.experiments.run.outcomes import StepTotals
from lopa_lab.records.figure import svg_image
from support.experiment_record import experiment_record, values

PROBLEMS = 3


def words_of_plot(experiment: Experiment, of: ExperimentRecord) -> str:
    pytest.importorskip("matplotlib")
    return svg_image(lambda *axes: experiment.draw(of, *axes), experiment.plot_rows)


def columns(**per_step: float) -> dict[str, list[float]]:
    """Totals of problems of 10, 20 and 30 steps that are all alike."""
    totals = StepTotals()
    for steps in (10, 20, 30):
        totals.add({"steps": steps, **{name: value * steps for name, value in per_step.items()}})
    return totals.columns


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
    of = a_sync_record()
    found = sync.EXPERIMENT.finding(of)
    text = values(found.text)
    # 100 ÷ (2 × 60); (100 - 2 - 2) ÷ (2 × (60 - 9 - 1)).
    assert (
        "blocks of 8, scaling efficiency is 83 %; without pre-write and commit-winner it would be 96 %"
        in text
    )
    assert "a difference of +12.7 points." in text
    assert "The 2 workers share 2 cores" in text
    for apart in ({"cores": 16}, {"accelerators": ("a device",)}):
        elsewhere = of.model_copy(update={"machine": of.machine.model_copy(update=apart)})
        assert "share" not in sync.EXPERIMENT.finding(elsewhere).text
    rows = {tuple(row[:3]): row[3:] for row in found.rows}
    assert values(rows["32", "2", "single_phase"][2]) == "0.48", "one branch stages for all"
    # Shares of 60 ms and of 100 ms; a block of each branch is staged in every step.
    assert list(map(values, rows["8", "2", "two_phase"][2:5])) == ["1.67", "15.00", "16.67"]
    assert list(map(values, rows["8", "1", "two_phase"][2:5])) == ["2.00", "2.00", "16.00"]
    # 100 ÷ (2 × 52).
    assert values(rows["8", "2", "single_phase"][5]) == "96"
    assert "0.87 times as long (blocks of 8)" in values(found.against_paper)
    assert (
        "16.7 % (blocks of 8) and 16.7 % (blocks of 32) of a step, and control 16.7 % and 16.7 %."
        in values(found.headline)
    )


def test_counts_of_workers() -> None:
    assert list(map(sync.worker_counts, (2, 4, 6))) == [[1, 2], [1, 2, 4], [1, 2, 4, 6]]


def test_one_worker_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["experiment", "parallelism", "--set", "group.num_workers=1", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "set 2 or more" in " ".join(done.output.split())


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
    assert "branch-parallel has 100 tokens/s, and task-parallel 150: 1.50 times." in text
    crossing = "is better with branch-parallel up to 2 in flight, and with task-parallel beyond"
    assert f"Throughput {crossing}" in text and f"Latency {crossing}" in text
    assert "clearly so for 4, 8 with task-parallel; clearly so for 1, 2 with branch-parallel" in text
    assert "share" not in text, "on a cluster workers have cores of their own"
    image = words_of_plot(parallelism.EXPERIMENT, of)
    assert ">tokens/s<" in image and image.count(">task-parallel<") == 1


def test_arrangements_that_do_not_cross_once() -> None:
    def sentence(*ratios: float) -> str:
        figures = {2**at: np.full(9, ratio) for at, ratio in enumerate(ratios)}
        return parallelism.crossing_sentence("Throughput", figures)

    assert "with branch-parallel for every number of requests (clearly so for 1, 2 " in sentence(0.5, 0.9)
    assert sentence(1.0, 1.0).endswith("with task-parallel for every number of requests, nowhere clearly.")
    assert "with task-parallel up to 1 in flight" in sentence(2.0, 0.5)
    assert "Throughput crosses more than once" in sentence(2.0, 0.5, 2.0)


class CountingEngine:
    """Answers every session with itself, and counts the requests that it has in flight."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.in_flight = self.most = 0

    def run(self, sessions: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        (session,) = sessions
        with self.lock:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
        yield 0, session
        with self.lock:
            self.in_flight -= 1


def test_clients_have_one_request_each() -> None:
    engines: list[Any] = [CountingEngine(), CountingEngine()]
    sessions: list[Any] = list(range(50))
    assert parallelism.send(engines, sessions, 3) == sessions
    assert engines[0].most <= 2 and engines[1].most <= 1, "the third client shares the first engine"
    with pytest.raises(ValueError, match="lost"):
        parallelism.send(engines, [*sessions, ValueError("lost")], 2)
