"""A server and the driver of a job whose Ray ends under them: they say so, and end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.ports import free_port
from support.processes import command_line, processes_in_session, subprocess_environment
from support.server_process import START_TIMEOUT_S
from support.waiting import ENDING_TIMEOUT_S, wait_until

AGENT = "ray::DashboardAgent"
"""Ray's agent on a node. When it ends, the raylet ends, and with it all other processes there."""

END_S = 10.0


def check_that_it_ends_with_ray(command: Sequence[str], sign: str, folder: Path) -> None:
    """Kill the node's agent once the output of a command has the sign; the command then has to end."""
    out = folder / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=subprocess_environment(),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, out.read_text()
            return sign in out.read_text()

        wait_until(ready, sign, START_TIMEOUT_S)
        (agent,) = [one for one in processes_in_session(process.pid) if command_line(one).startswith(AGENT)]
        agent.kill()
        killed = time.monotonic()
        assert process.wait(END_S) == 1
        print(f"ended {time.monotonic() - killed:.1f} s after the agent")
        last = out.read_text().splitlines()[-1]
        assert last.startswith("Error: Ray on this node has ended"), out.read_text()
        wait_until(lambda: not processes_in_session(process.pid), "its processes to go", ENDING_TIMEOUT_S)
    finally:
        for left in processes_in_session(process.pid):
            left.kill()
        process.wait()


@pytest.mark.nightly
def test_the_driver_of_a_job(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Ben has {pens} pens."}) + "\n" for pens in range(5000))
    )
    command = ["cluster.jobs", "--input", str(prompts), "--output", str(tmp_path / "results.jsonl")]
    check_that_it_ends_with_ray([*command, "--workers", "1"], " at work", tmp_path)


@pytest.mark.nightly
def test_a_server(tmp_path: Path) -> None:
    command = ["cluster.cli", "serve", "--port", str(free_port()), "--workers", "1"]
    check_that_it_ends_with_ray(command, "Serving ", tmp_path)
