"""Where `lopa generate` decodes: in its own process, unless something asks for Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cluster.cli import app
from cluster.cli.where_to_decode import DEMO_LINE, reason_for_ray, where_line
from lopa_ray.engine.config import Config
from support.paths import GOLDEN

MODEL = str(GOLDEN / "models" / "dream-tiny-2l")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_cluster_and_no_earlier_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_prompt_is_decoded_in_this_process_and_a_line_says_so() -> None:
    result = CliRunner().invoke(app, ["generate", "--json", "-n", "16", "2 + 2"])
    assert result.exit_code == 0
    assert result.stderr.startswith("Decoding in this process; --workers N ")
    assert '"steps"' in result.stdout
    again = CliRunner().invoke(app, ["generate", "--json", "-n", "16", "2 + 2"])
    assert (again.exit_code, again.stderr) == (0, "")


@pytest.mark.medium
def test_the_model_in_the_package_is_said_to_solve_word_problems_alone() -> None:
    result = CliRunner().invoke(app, ["generate", "--local", "--json", "-n", "16", "2 + 2"])
    assert result.stderr.splitlines() == [DEMO_LINE]
    other = ("--local", "--model", MODEL, "--json", "-n", "8", "--set", "decode.block_size=8")
    result = CliRunner().invoke(app, ["generate", *other, "--input", "-"], input="[1, 2]\n")
    assert result.exit_code == 0 and result.stderr.startswith("1 line in ")


@pytest.mark.parametrize("setting", ["num_workers", "tensor_parallel_size", "scaling"])
def test_options_of_a_group_ask_for_ray(setting: str) -> None:
    reason = reason_for_ray(Config.load("demo"), source=None, options=[setting])
    assert reason == f"the command line sets group.{setting}"


def test_a_named_preset_with_workers_asks_for_ray(tmp_path: Path) -> None:
    reason = reason_for_ray(Config.load("demo"), source="demo", options=())
    assert reason == "demo sets group.num_workers"
    assert (
        where_line(Config.load("demo"), reason)
        == "Decoding on 2 workers of a local Ray: demo sets group.num_workers."
    )
    own = tmp_path / "own.yaml"
    own.write_text("group: {num_cpus: 2.0}\n")
    assert reason_for_ray(Config.load(own), source=str(own), options=["step_timeout_s"]) is None
    own.write_text("group: {scaling: null}\n")
    assert reason_for_ray(Config.load(own), source=str(own), options=()) is None


def test_a_running_cluster_asks_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config = Config.parse({"group": {"num_workers": 1}})
    reason = reason_for_ray(config, source=None, options=())
    assert (
        where_line(config, reason) == "Decoding on 1 worker of the Ray at 10.0.0.1:6379: RAY_ADDRESS is set."
    )


@pytest.mark.parametrize(("number", "reason"), [(1, None), (4, "there are 4 devices (cuda)")])
def test_several_accelerators_ask_for_ray(
    number: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: number)
    config = Config.load("demo", {"model": {"device": "cuda"}})
    assert reason_for_ray(config, source=None, options=()) == reason
    assert reason_for_ray(Config.load("demo"), source=None, options=()) is None
