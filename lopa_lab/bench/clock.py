"""Timing of calls that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

WARM_UPS = 3
"""Calls that are not counted: they compile, allocate, and fill caches."""


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call, and what has to be done before each."""

    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Clock:
    """Milliseconds on one kind of device."""

    device: torch.device

    @property
    def kind(self) -> str:
        """The kind of time that is measured: processor time or wall time."""
        return "processor time" if self._counts_processor_time else "wall time"

    @property
    def _counts_processor_time(self) -> bool:
        """Whether processor time is measured. With one thread it excludes other work on the machine."""
        return self.device.type == "cpu" and torch.get_num_threads() == 1

    def now(self) -> float:
        """Seconds of that kind."""
        return time.process_time() if self._counts_processor_time else time.perf_counter()

    def medians_ms(self, calls: Sequence[TimedCall], repeats: int) -> list[float]:
        """The median time of each call, in milliseconds. All take turns, so that a change of the machine's speed
        concerns all of them."""
        times: list[list[float]] = [[] for _ in calls]
        for repeat in range(-WARM_UPS, repeats):
            for timed, spent in zip(calls, times, strict=True):
                timed.prepare()
                self._wait()
                began = self.now()
                timed.call()
                self._wait()
                if repeat >= 0:
                    spent.append(1000 * (self.now() - began))
        return [statistics.median(spent) for spent in times]

    def free_memory(self) -> None:
        """Give the device's memory that nothing holds back, for other processes."""
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).empty_cache()

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).synchronize()
