"""The example of a client."""

from __future__ import annotations

import subprocess
import sys

from support.paths import ROOT
from support.server_process import ServerProcess

EXAMPLE = ROOT / "examples" / "ask_a_server.py"


def test_the_client_of_the_examples(server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--url", f"{server.url}/v1", "--key", server.api_key],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The whole answer, its figures, and the same answer as a stream.
    assert done.stdout.count("#### 35") == 2 and "TPF" in done.stdout
