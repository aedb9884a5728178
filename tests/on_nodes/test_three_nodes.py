"""A group that is spread over nodes decodes the same tokens, also when a node goes. Ray's test cluster, in a process
of its own."""

from __future__ import annotations

import statistics
from unittest.mock import ANY

import pytest

from support.processes import run_program

pytestmark = pytest.mark.nightly

ROUNDS = {"workers": 6, "master": 6}
"""Nodes lost; nine requests each."""


def test_a_group_over_three_nodes() -> None:
    printed = run_program("three_nodes.py")
    assert printed["nodes_of_two_workers"] == 1
    assert printed["refusal"]["error"].count("with 2 CPU has room for 0") == 3
    assert printed["refusal"]["seconds"] < 5
    assert printed["lost"] == {"nodes": 3, "requests": 6, "workers_left": 2, "pause_s": ANY}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("actor", ROUNDS)
def test_nodes_are_lost_again_and_again(actor: str, capsys: pytest.CaptureFixture) -> None:
    """With a worker, or with the master as well: then the group is lost, and its requests go on on another one."""
    losses = run_program("lost_nodes.py", actor, str(ROUNDS[actor]), timeout_s=1200)
    pauses = [loss["pause_s"] for loss in losses]
    requests = sum(loss["requests"] for loss in losses)
    assert requests >= 50
    assert actor == "master" or all(loss["workers_left"] == 2 for loss in losses)
    with capsys.disabled():
        print(
            f"\nnode with {actor}: {len(losses)} nodes, {requests} requests, pause "
            f"{statistics.median(pauses):.2f} s (median), {max(pauses):.2f} s (worst)"
        )
