"""Experiments with groups of workers on a Ray of their own, at their smallest size. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_lab.experiments.run.experiment import ExperimentRecord
from lopa_lab.experiments.table import load_experiment
from support.client_command import run_command


def run(tmp_path: Path, name: str) -> ExperimentRecord:
    pytest.importorskip("matplotlib")
    options = ("--problems", "1", "--set", "decode.max_new_tokens=16", "--output", ".")
    run_command(tmp_path, "cluster.cli", "experiment", name, *options)
    record = ExperimentRecord.read(tmp_path / f"{name}.json")
    assert record.setup.timed_on == record.machine.hardware
    assert load_experiment(name).finding(record).text in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return record


@pytest.mark.slow
@pytest.mark.long
def test_parts_of_a_step(tmp_path: Path) -> None:
    for point in run(tmp_path, "sync").points:
        workers = point.data["workers"]
        assert list(workers) == ["1", "2"]
        for protocol in ("two_phase", "single_phase"):
            one, two = (workers[count][protocol] for count in ("1", "2"))
            assert one["steps"] == two["steps"] and one["staged"] == two["staged"], "tokens are the same"
            assert min(one["staged"]) > 0, "the prompt at least"
            assert min(two["forward"]) > 0 and min(two["commit"]) > 0
        assert min(point.data["pre-write ms"].values()) > 0


@pytest.mark.long
def test_rounds_of_two_arrangements(tmp_path: Path) -> None:
    for point in run(tmp_path, "parallelism").points:
        branch, task = point.data["branch-parallel"], point.data["task-parallel"]
        assert branch["tokens"] == task["tokens"] and len(set(branch["tokens"])) == 1, "tokens are the same"
        for arrangement in (branch, task):
            for seconds, latency in zip(arrangement["seconds"], arrangement["latency"], strict=True):
                assert 0 < latency <= seconds
