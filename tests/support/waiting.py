"""Waiting for a condition, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 120.0
"""For what must come about, on machines that are busy with something else."""

ENDING_TIMEOUT_S = 30.0
"""For what has to end at once: what goes on has been forgotten, and another limit may end it later."""


def wait_until(
    condition: Callable[[], object], what: str = "the condition", timeout_s: float = TIMEOUT_S
) -> float:
    """Returns the seconds that it took; fails after `timeout_s`, with `what` in the message."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(0.05)
    return time.monotonic() - began
