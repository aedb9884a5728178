"""A group that is spread over nodes decodes the same tokens. Ray's test cluster, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ray_nodes import environment

TESTS = Path(__file__).parents[1]


def test_a_group_over_three_nodes() -> None:
    done = subprocess.run(
        [sys.executable, TESTS / "three_nodes.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["SPREAD"]["nodes"], found["SPREAD"]["tokens"]) == (3, "equal")
    assert (found["PACK"]["nodes"], found["PACK"]["tokens"]) == (1, "equal")
    assert found["refusal"]["error"].count("with 2 CPU has place for 0") == 3
    assert found["refusal"]["seconds"] < 5
