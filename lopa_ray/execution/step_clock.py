"""StepClock: how long a step takes, and how much of it its commits."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

BOUNDARIES = 5
"""Begin and end of gathering the K/V to send, then begin and end of receiving and writing K/V, then the end of all that
the device computes."""


def has_events(device: torch.device) -> bool:
    """Whether the device is the accelerator of this process, so that what it has done is known by events."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


class StepTimes:
    """The times of one step, between boundaries: by events on an accelerator, by the host's clock elsewhere.

    The host only enqueues what an accelerator computes, so its own clock would show the time of enqueueing. An
    accelerator reaches the first boundary when it has finished the step before, which may still be under way when the
    host begins this one. Events are read after the one wait of a step, for its scores, and cost no wait of their own.
    """

    def __init__(self, events: list[torch.Event]) -> None:
        """Begin the step, with its first boundary. `events`: one per boundary; none where there is no accelerator."""
        self._events = events
        self._times: list[float] = []
        self._resumed: float | None = None
        self.mark()

    def mark(self) -> None:
        """The next boundary."""
        if self._events:
            self._events[len(self._times)].record()
        self._times.append(time.perf_counter())

    def wait(self) -> None:
        """Wait until the device has reached the last boundary. Since then the host may have begun another step; that
        time is not this step's."""
        self._resumed = time.perf_counter()
        if self._events:
            self._events[-1].synchronize()

    def seconds(self) -> tuple[float, float]:
        """Seconds of the step's commits, and of the rest of it until now. All boundaries are marked.

        If an accelerator has not reached the last boundary, these are times of enqueueing: a step without a branch does
        not wait.
        """
        if self._events and self._events[-1].query():
            spans = [1e-3 * begin.elapsed_time(end) for begin, end in pairwise(self._events)]
        else:
            spans = [end - begin for begin, end in pairwise(self._times)]
            if self._resumed is not None:
                spans.append(time.perf_counter() - self._resumed)
        gathering, packing, writing, *rest = spans
        return gathering + writing, packing + sum(rest)


class StepClock:
    """Begins the times of steps on a device."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the steps are computed."""
        self._device = device
        self.has_events = has_events(device)
        """Whether the device computes while the host goes on, and its events tell when it is done."""

    def start(self) -> StepTimes:
        """Begin a step."""
        # Several steps may be in flight, so each has events of its own.
        return StepTimes(
            [torch.Event(self._device, enable_timing=True) for _ in range(BOUNDARIES * self.has_events)]
        )
