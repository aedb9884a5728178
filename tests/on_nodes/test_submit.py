"""`ray job submit` to a head, as a user does it: killed half way, and submitted again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobStatus

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.paths import BIN, ROOT
from support.ray_nodes import RayHead, run_head
from support.tiny_model import TINY_MODEL
from support.waiting import wait_until

LINES = 96

SECTIONS = {"model": {"path": str(TINY_MODEL)}, "group": {"num_cpus": 0.5}, "decode": {"max_new_tokens": 48}}

JOB_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    options = "--num-cpus=4 --object-store-memory=150000000 --include-dashboard=true"
    with run_head(tmp_path_factory.mktemp("head"), options) as running:
        yield running


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"id": f"no {number}", "token_ids": [1 + number % 90, 5]}) for number in range(LINES)]
    rows[40] = "nonsense"
    path.write_text("\n".join(rows))
    return path


def submit(cluster: RayHead, prompts: Path, output: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Without waiting for the job."""
    changes = [
        f"--set={section}.{key}={value}" for section, keys in SECTIONS.items() for key, value in keys.items()
    ]
    submission = [f"--address={cluster.dashboard}", f"--submission-id={name}", "--working-dir=.", "--no-wait"]
    job = [sys.executable, "-m", "cluster.jobs", f"--input={prompts}", f"--output={output}"]
    return subprocess.run(
        [BIN / "ray", "job", "submit", *submission, "--", *job, "--groups=2", "--workers=1", *changes],
        cwd=ROOT,
        env=cluster.environment,
        check=True,
        capture_output=True,
        text=True,
    )


def driver(cluster: RayHead) -> psutil.Process:
    """The job's own process."""
    (process_of_job,) = [
        process
        for process in psutil.Process(cluster.process.pid).children(recursive=True)
        if process.cmdline()[1:3] == ["-m", "cluster.jobs"]
    ]
    return process_of_job


@pytest.mark.timeout(4 * JOB_TIMEOUT_S)
@pytest.mark.nightly
def test_a_job_killed_half_way_and_submitted_again_ends_with_each_prompt_once(
    cluster: RayHead, prompts: Path, tmp_path: Path
) -> None:
    client = cluster.job_client()
    output, parts = tmp_path / "results.jsonl", tmp_path / "results.jsonl.parts"

    def finished() -> list[str]:
        return sorted(path.name for path in parts.glob("part-*.jsonl"))

    def has_parts(name: str, number: int) -> Callable[[], bool]:
        def condition() -> bool:
            assert not client.get_job_status(name).is_terminal(), client.get_job_logs(name)
            return len(finished()) >= number

        return condition

    submit(cluster, prompts, output, "killed")
    wait_until(has_parts("killed", 4), "a few chunks to be done", JOB_TIMEOUT_S)
    driver(cluster).kill()
    wait_until(lambda: client.get_job_status("killed") == JobStatus.FAILED, "the job to have failed")
    kept = {name: (parts / name).read_bytes() for name in finished()}
    assert 4 <= len(kept) < LINES // 3 and not output.exists()

    submit(cluster, prompts, output, "stopped")
    wait_until(has_parts("stopped", len(kept) + 1), "another chunk to be done", JOB_TIMEOUT_S)
    client.stop_job("stopped")
    wait_until(lambda: client.get_job_status("stopped").is_terminal(), "the job to stop")
    assert not output.exists()
    assert all((parts / name).read_bytes() == content for name, content in kept.items())

    submit(cluster, prompts, output, "again")
    wait_until(lambda: client.get_job_status("again").is_terminal(), "the job to end", JOB_TIMEOUT_S)
    log = client.get_job_logs("again")
    # A line without a result is no success, though everything that can be done is done.
    assert client.get_job_status("again") == JobStatus.FAILED, log
    assert "lines are done already" in log and f"{LINES} lines in " in log
    assert "line 41: not JSON" in log and "1 of 96 lines failed" in log
    check(output)
    assert not parts.exists()

    began = time.monotonic()
    submit(cluster, prompts, output, "once more")
    wait_until(lambda: client.get_job_status("once more").is_terminal(), "the job to end", JOB_TIMEOUT_S)
    assert "complete already" in client.get_job_logs("once more")
    assert time.monotonic() - began < 60


def check(output: Path) -> None:
    """Each prompt has one row, in order, with the tokens of a decode alone in one process."""
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, LINES + 1))
    local = LocalEngine.from_config(Config.load("demo", SECTIONS))
    for number, row in enumerate(rows):
        if number == 40:
            assert "not JSON" in row["error"]
        else:
            assert row["id"] == f"no {number}"
            assert row["token_ids"] == local.generate([1 + number % 90, 5]).token_ids


@pytest.mark.nightly
def test_the_example_submits_a_job(cluster: RayHead, tmp_path: Path) -> None:
    options = ["--address", cluster.dashboard, "--folder", str(tmp_path), "--python", sys.executable]
    job = ["--workers=1", "--set=group.num_cpus=0.5"]
    done = subprocess.run(
        [sys.executable, "examples/submit_a_job.py", *options, "--", *job],
        cwd=ROOT,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 lines (100.0 %)" in done.stdout and "4 results, " in done.stdout
