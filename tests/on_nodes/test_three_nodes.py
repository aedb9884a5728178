"""A group that is spread over nodes decodes the same tokens, also when a node goes. Ray's test cluster, in a process
of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import environment

TESTS = Path(__file__).parents[1]

ROUNDS = {"workers": 6, "master": 6}
"""Nodes lost; nine requests each."""


def told_by(program: str, *arguments: str, within_s: float = 280) -> Any:
    """The JSON that the program prints last."""
    done = subprocess.run(
        [sys.executable, TESTS / program, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_group_over_three_nodes() -> None:
    found = told_by("three_nodes.py")
    assert (found["SPREAD"]["nodes"], found["SPREAD"]["tokens"]) == (3, "equal")
    assert (found["PACK"]["nodes"], found["PACK"]["tokens"]) == (1, "equal")
    assert found["refusal"]["error"].count("with 2 CPU has place for 0") == 3
    assert found["refusal"]["seconds"] < 5
    assert (found["lost"]["requests"], found["lost"]["workers left"]) == (6, 2)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("what", ROUNDS)
def test_nodes_are_lost_again_and_again(what: str, capsys: pytest.CaptureFixture) -> None:
    """With a worker, or with the master as well: then the group is lost, and its requests go on on another one."""
    losses = told_by("lost_nodes.py", what, str(ROUNDS[what]), within_s=1200)
    held = [loss["held up"] for loss in losses]
    requests = sum(loss["requests"] for loss in losses)
    assert requests >= 50
    assert what == "master" or all(loss["workers left"] == 2 for loss in losses)
    with capsys.disabled():
        print(
            f"\nnode with {what}: {len(losses)} nodes, {requests} requests, held up "
            f"{statistics.median(held):.2f} s (median), {max(held):.2f} s (worst)"
        )
