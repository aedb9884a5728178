"""StepClock: how much of a step's time its commits take."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

BOUNDARIES = 4
"""Begin and end of gathering the K/V to send, then begin and end of receiving and writing K/V."""


def has_events(device: torch.device) -> bool:
    """Whether the device is the accelerator of this process, so that what it has done is known by events."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


class StepClock:
    """Measures between boundaries: with events on an accelerator, by the host's clock elsewhere.

    The host only enqueues what an accelerator computes, so its own clock would show the time of enqueueing. Events are
    read after the one wait of a step, the copy of its scores, and cost no wait of their own.
    """

    def __init__(self, device: torch.device) -> None:
        """`device`: where the steps are computed."""
        count = BOUNDARIES if has_events(device) else 0
        self._events = [torch.Event(device, enable_timing=True) for _ in range(count)]
        self._times: list[float] = []

    def start(self) -> None:
        """Begin a step, with its first boundary."""
        self._times = []
        self.mark()

    def mark(self) -> None:
        """The next boundary."""
        if self._events:
            self._events[len(self._times)].record()
        self._times.append(time.perf_counter())

    def seconds(self) -> tuple[float, float]:
        """Seconds of the step's commits, and of the rest of it until now. All boundaries are marked.

        If an accelerator has not reached the last boundary, the first number is the time of enqueueing: a step without
        a branch does not wait.
        """
        total = time.perf_counter() - self._times[0]
        if self._events and self._events[-1].query():
            spans = [1e-3 * begin.elapsed_time(end) for begin, end in pairwise(self._events)]
        else:
            spans = [end - begin for begin, end in pairwise(self._times)]
        gathering, _, writing = spans
        commits = gathering + writing
        return commits, max(0.0, total - commits)
