"""Processes that tests start, find, signal and kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil

from support.paths import PROGRAMS
from support.waiting import wait_until


def subprocess_environment() -> dict[str, str]:
    """Ray nodes and drivers are started with it: workers import the project and the tests' own modules.

    RAY_AUTH_MODE is not set, whether or not a local Ray of this process has set it.
    """
    excluded = {"RAY_ADDRESS", "RAY_AUTH_MODE"}
    inherited = {name: value for name, value in os.environ.items() if name not in excluded}
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path)}


def run_program(program: str, *arguments: str, timeout_s: float = 280) -> Any:
    """The JSON that one of `tests/programs` prints last."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def actor_pids(class_name: str) -> list[int]:
    """Processes below this one that run a Ray actor of that class."""
    return [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if command_line(process).startswith(f"ray::{class_name}")
    ]


def kill_actors(class_name: str) -> None:
    """Kill all actors of that class; there is one at least."""
    pids = actor_pids(class_name)
    assert pids
    for pid in pids:
        send_signal(pid, signal.SIGKILL)


def wait_until_no_actors() -> None:
    wait_until(lambda: not actor_pids("BranchWorker") + actor_pids("Master"), "the actors to end")


def processes_in_session(pid: int) -> list[psutil.Process]:
    """Live processes of the POSIX session which the process `pid` leads, or led."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def command_line(process: psutil.Process) -> str:
    """Empty if the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def send_signal(pid: int, sig: signal.Signals) -> None:
    """Does nothing if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def kill_process_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, and wait for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for member in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()
