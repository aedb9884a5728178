"""A node runs out of memory: what Ray's memory monitor ends are lost workers, and no request is to blame."""

from __future__ import annotations

import statistics

import pytest

from actors.calls.actor_errors import MEMORY_ADVICE
from support.processes import run_program

ROUNDS = 6
"""Nine requests each."""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_workers_that_the_memory_monitor_ends(capsys: pytest.CaptureFixture) -> None:
    printed = run_program("low_memory.py", str(ROUNDS), timeout_s=900)
    pauses = printed["pauses_s"]
    assert printed["requests"] >= 50 and len(pauses) == ROUNDS
    assert MEMORY_ADVICE in printed["reason"].splitlines()[0]
    with capsys.disabled():
        print(
            f"\nout of memory on a node: {ROUNDS} times, {printed['requests']} requests, pause "
            f"{statistics.median(pauses):.2f} s (median), {max(pauses):.2f} s (worst)"
        )
