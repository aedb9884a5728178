"""The examples of clients."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.paths import ROOT
from support.server_process import ServerProcess

pytestmark = pytest.mark.slow


def run_example(name: str, server: ServerProcess) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, "--url", f"{server.url}/v1", "--key", server.api_key],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_asking_a_server(server: ServerProcess) -> None:
    output = run_example("ask_a_server.py", server)
    # The whole answer, its figures, and the same answer as a stream.
    assert output.count("#### 35") == 2 and "TPF" in output


def test_calling_a_function(server: ServerProcess) -> None:
    call, answer = run_example("call_a_function.py", server).split("\n", 1)
    assert re.fullmatch(r"multiply\(\{.*\}\) is \d+", call) and answer.strip()
