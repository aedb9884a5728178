"""Waiting for a condition, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], timeout_s: float = 10.0, what: str = "the condition"
) -> float:
    """Returns the seconds that it took; fails after `timeout_s`, with `what` in the message."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(0.05)
    return time.monotonic() - began
