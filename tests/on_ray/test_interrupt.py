"""Ctrl-C and other ends of a command: its exit status, no traceback, no process left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.tiny_model import TINY_MODEL


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def is_in_a_step(process: psutil.Process) -> bool:
    """Whether a worker computes while no call of its actor runs, whose name its title would have."""
    with contextlib.suppress(psutil.NoSuchProcess):
        title, began = process.cmdline()[:1], sum(process.cpu_times()[:2])
        if title == ["ray::BranchWorker"]:
            time.sleep(0.3)
            return process.cmdline()[:1] == title and sum(process.cpu_times()[:2]) - began > 0.05
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        *(
            pytest.param(number, status, marks=pytest.mark.nightly)
            for number, status in (
                (signal.SIGTERM, 143),
                (signal.SIGHUP, 129),
                (signal.SIGKILL, -signal.SIGKILL),
            )
        ),
    ],
)
def test_the_end_of_a_command_ends_everything(tmp_path: Path, number: signal.Signals, status: int) -> None:
    prompts = tmp_path / "prompts.jsonl"
    settings = {"max_new_tokens": 200, "stop_at_eos": False, "confidence_threshold": 1.0, "num_branches": 8}
    prompts.write_text((json.dumps({"token_ids": [1, 2, 3], "settings": settings}) + "\n") * 500)
    command = [sys.executable, "-m", "cluster.cli", "generate", "--model", str(TINY_MODEL), "--workers", "2"]
    command += ["--input", str(prompts), "--output", str(tmp_path / "results.jsonl")]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 240
    while not any(is_in_a_step(process) for process in descendants(running.pid)):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "the workers never began"
        time.sleep(0.05)
    started = descendants(running.pid)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == status
    assert "Traceback" not in stderr
    assert not (tmp_path / "results.jsonl").exists()
    _, alive = psutil.wait_procs(started, timeout=90)  # agents of a killed Ray look for it
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
