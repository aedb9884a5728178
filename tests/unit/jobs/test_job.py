"""What a job records of its settings, and its command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.batch.source import InputSummary
from cluster.jobs.__main__ import app
from cluster.jobs.job import SPEED_SETTINGS, job_spec
from cluster.jobs.resumable_output import JobSpec
from lopa_ray.config.model_settings import DEMO_MODEL, ModelSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import resolve_config
from support.paths import MODELS

RECORDED = {
    "group": {
        "tensor_parallel_size",
        "expert_parallel",
        "num_cpus",
    },
    "model": {*ModelSettings.model_fields} - {"max_num_seqs"},
}
"""Settings on which results depend, of the sections that have others, too."""


def test_all_that_results_depend_on_is_in_the_record() -> None:
    """A new setting has to be in one of the two lists."""
    config = Config.load("demo", {"decisions": {"rotations": 3}})
    record = job_spec(config, InputSummary("sum", "plain", [1, 3]), raw=True)
    assert (record["input"], record["raw"]) == ({"sha256": "sum", "format": "plain", "lines": 2}, True)
    for section, settings in config:
        recorded = RECORDED.get(section, {*type(settings).model_fields})
        assert {*record[section]} == recorded
        assert {*type(settings).model_fields} == recorded | SPEED_SETTINGS.get(section, set())
        assert not recorded & SPEED_SETTINGS.get(section, set())
    assert record["decisions"]["rotations"] == 3


def test_a_job_that_goes_on_has_the_same_sampling() -> None:
    """Whether a setting was written down, or comes from the checkpoint."""
    open_, said = (
        resolve_config(Config.parse({"model": {"path": str(MODELS / "sdar-tiny-3l")}, "decode": decode}))
        for decode in ({}, {"temperature": 0.0, "top_p": None, "top_k": None})
    )
    specs = [job_spec(config, InputSummary("", "plain", [1]), raw=False) for config in (open_, said)]
    assert specs[0]["decode"]["temperature"] == 0.6 and specs[1]["decode"]["temperature"] == 0.0


@pytest.mark.medium
@pytest.mark.parametrize(
    ("setting", "name"),
    [("path", "model.safetensors"), ("path", "tokenizer.json"), ("lora", "generation_config.json")],
)
def test_a_job_knows_a_checkpoint_by_its_files(tmp_path: Path, setting: str, name: str) -> None:
    here, copy = (shutil.copytree(DEMO_MODEL, tmp_path / folder) for folder in ("here", "copy"))

    def record(folder: Path) -> JobSpec:
        config = Config.load("demo", {"model": {setting: str(folder)}})
        return job_spec(config, InputSummary("", "plain", [1]), raw=False)

    before = record(here)["checkpoint"]
    assert record(copy)["checkpoint"] == before
    content = (here / name).read_bytes()
    (here / name).write_bytes(content[:-1] + b" ")
    (here / "README.md").write_text("says nothing of results")
    assert record(here)["checkpoint"] != before
    (here / name).write_bytes(content)
    assert record(here)["checkpoint"] == before


def test_a_commit_on_the_hub_stands_for_its_files() -> None:
    config = Config.load("demo", {"model": {"path": f"org/name@{'0' * 40}"}})
    assert job_spec(config, InputSummary("", "plain", [1]), raw=False)["checkpoint"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "results.jsonl"], "an absolute path or a URL"),
        (["--output", "/x/results.jsonl", "--groups", "0"], "--groups"),
        (["--output", "/x/results.jsonl", "--set", "decode.num_branches=0"], "num_branches"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["--input", "prompts.jsonl", *arguments])
    assert result.exit_code == 2 and message in result.output
