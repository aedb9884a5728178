"""The experiments that open groups of workers, at their smallest sizes. No time is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lopa_lab.experiments.run.experiment import ExperimentRecord
from lopa_lab.experiments.table import load_experiment
from support.client_command import run_command


def tokens_of_a_step_by_workers(data: dict[str, Any]) -> list[Any]:
    return [
        [by[protocol][what] for protocol in by for what in ("steps", "staged")]
        for by in data["workers"].values()
    ]


def tokens_by_arrangement(data: dict[str, Any]) -> list[Any]:
    return [data[arrangement]["tokens"] for arrangement in ("branch-parallel", "task-parallel")]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "tokens"), [("sync", tokens_of_a_step_by_workers), ("parallelism", tokens_by_arrangement)]
)
def test_an_experiment_on_groups(name: str, tokens: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--problems", "1", "--set", "decode.max_new_tokens=16", "--output", ".")
    run_command(tmp_path, "cluster.cli", "experiment", name, *options)
    record = ExperimentRecord.read(tmp_path / f"{name}.json")
    assert record.setup.timed_on == record.machine.hardware
    assert load_experiment(name).finding(record).text in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for point in record.points:
        one, two = tokens(point.data)
        assert one == two and one
