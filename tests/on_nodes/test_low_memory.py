"""A node that runs out of memory: whoever Ray's memory monitor ends is a lost worker, and no request is to blame."""

from __future__ import annotations

import statistics

import pytest

from support.ray_nodes import told_by

ROUNDS = 6
"""Nine requests each."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_that_the_memory_monitor_ends(capsys: pytest.CaptureFixture) -> None:
    found = told_by("low_memory.py", str(ROUNDS), within_s=900)
    held = found["held up"]
    assert found["requests"] >= 50 and len(held) == ROUNDS
    with capsys.disabled():
        print(
            f"\nout of memory on a node: {ROUNDS} times, {found['requests']} requests, held up "
            f"{statistics.median(held):.2f} s (median), {max(held):.2f} s (worst)"
        )
