"""Each experiment at its smallest size, as it is typed: it runs, goes on, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli import app
from cluster.experiments.run.record import ExperimentRecord
from cluster.experiments.table import EXPERIMENTS, load_experiment
from lopa_ray.errors import SettingsError

IN_PROCESS = ("branches", "tfo", "ablation", "predictor", "budget", "open-ended")
"""Those that need no Ray."""


def experiment(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


def test_help_lists_each_question() -> None:
    text = " ".join(experiment("--help").output.replace("│", " ").split())
    for name, question in EXPERIMENTS.items():
        assert name in text and question in text
    with pytest.raises(SettingsError, match="allowed: branches"):
        load_experiment("brances")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_differ(name: str) -> None:
    points = [json.dumps(point, sort_keys=True) for point in load_experiment(name).points(3)]
    assert len(points) == len(set(points)) > 1


@pytest.mark.parametrize("name", IN_PROCESS)
def test_an_experiment_runs_and_goes_on(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = (name, "--problems", "2", "--set", "decode.max_new_tokens=48", "--output", tmp_path)
    first = experiment(*arguments)
    assert first.exit_code == 0, first.output
    record = ExperimentRecord.read(tmp_path / f"{name}.json")
    assert (
        record.setup.problems == 2 and record.command[:3] == ("lopa", "experiment", name)
    ) or record.command
    assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / f"{name}.md").read_text()
    assert EXPERIMENTS[name] in page and load_experiment(name).finding(record).text in page

    # Half of the points are gone; what is measured again is the same.
    kept = (tmp_path / f"{name}.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / f"{name}.jsonl").write_text("".join(kept[: len(kept) // 2]))
    assert experiment(*arguments).exit_code == 0
    assert ExperimentRecord.read(tmp_path / f"{name}.json").points == record.points
    refused = experiment(*arguments, "--seed", "3")
    assert refused.exit_code == 2 and "seed: 2 then, 3 now" in " ".join(refused.output.split())
