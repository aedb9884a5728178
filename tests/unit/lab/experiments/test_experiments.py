"""Each experiment at its smallest size, as it is typed: it runs, goes on, and says what it found."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli import app
from lopa_lab.experiments.run.experiment import ExperimentRecord
from lopa_lab.experiments.run.setup import FIT_SEED
from lopa_lab.experiments.table import EXPERIMENTS, load_experiment
from lopa_ray.errors import SettingsError

pytestmark = pytest.mark.slow


OFTEN = ("branches", "verified")
"""Nightly runs all that need no groups."""

SELDOM = [name for name in EXPERIMENTS if name not in OFTEN and load_experiment(name).smallest is not None]

TWO_PROBLEMS = ("--problems", "2", "--set", "decode.max_new_tokens=48")


def experiment(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


def test_help_lists_each_question() -> None:
    text = " ".join(experiment("--help").output.replace("│", " ").split())
    for name, question in EXPERIMENTS.items():
        assert name in text and question in text
    # Beside the longest name, in a terminal of 80 columns.
    assert max(map(len, EXPERIMENTS.values())) <= 63
    with pytest.raises(SettingsError, match="allowed: ablation"):
        load_experiment("brances")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_differ(name: str) -> None:
    points = [json.dumps(point, sort_keys=True) for point in load_experiment(name).points()]
    assert len(points) == len(set(points)) > 1


@pytest.fixture
def smaller(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment with fewer points."""
    pytest.importorskip("matplotlib")
    smallest = load_experiment(name).smallest
    module = importlib.import_module(type(load_experiment(name)).__module__)
    assert smallest is not None
    for constant, value in smallest.items():
        assert hasattr(module, constant)
        monkeypatch.setattr(module, constant, value)


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize(
    "name", [*OFTEN, *(pytest.param(name, marks=pytest.mark.nightly) for name in SELDOM)]
)
def test_an_experiment_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = experiment(name, *TWO_PROBLEMS, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    record = ExperimentRecord.read(tmp_path / f"{name}.json")
    assert record.setup.problems == 2
    found = load_experiment(name).finding(record)
    assert found.headline and all(len(row) == len(found.header) for row in found.rows)
    assert found.text in done.output
    assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / f"{name}.md").read_text()
    assert EXPERIMENTS[name] in page and found.text in page
    # All points are kept: none is measured again.
    monkeypatch.delattr(type(load_experiment(name)), "measure")
    assert experiment(name, *TWO_PROBLEMS, "--output", tmp_path).exit_code == 0


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize(("name", "length"), [("predictor", 1), ("branches", 0)])
def test_too_little_to_tell_anything_is_refused(name: str, length: int, tmp_path: Path) -> None:
    """Steps whose branches do not differ; no steps at all."""
    few = ("--problems", "2", "--set", f"decode.max_new_tokens={length}")
    done = experiment(name, *few, "--output", tmp_path)
    assert done.exit_code == 2, done.output
    assert "for longer answers (--set decode.max_new_tokens)" in " ".join(done.output.split())
    assert not (tmp_path / f"{name}.json").exists()


def test_problems_that_drafts_are_fitted_to_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = experiment("verified", *TWO_PROBLEMS, "--seed", FIT_SEED, "--output", tmp_path)
    assert done.exit_code == 2 and "take another seed" in " ".join(done.output.split())
