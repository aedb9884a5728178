"""StartPhases and StepTimer: the time of each phase of a group's start, and of each of its steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from lopa_ray.protocol.step_report import StepReport, StepTiming


class StartPhases:
    """A clock that runs from when it is made; each phase begins when the one before has ended."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ends: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """The phase ends now. If several actors go through it, the last call counts."""
        self._ends[phase] = time.monotonic()

    @property
    def seconds(self) -> dict[str, float]:
        """Phase → seconds, for each phase that has ended, in order."""
        edges = [self._began, *self._ends.values()]
        return {phase: end - begin for phase, (begin, end) in zip(self._ends, pairwise(edges), strict=True)}


class StepTimer:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._sent = 0.0
        """When scatter ended, as `time.perf_counter`."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time of a block as a phase of the step."""
        began = time.perf_counter()
        yield
        self._sent = time.perf_counter()
        self._seconds[phase] = self._sent - began

    def answered(self) -> None:
        """All reports have arrived. gather lasts since the plans were sent, whatever the master did meanwhile."""
        self._seconds["gather"] = time.perf_counter() - self._sent

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def timing(self, reports: Sequence[StepReport]) -> StepTiming | None:
        """The step, with what the workers report of their own parts. None for a step without workers."""
        if not reports:
            return None
        slowest = max(report.commit_s + report.forward_s for report in reports)
        return StepTiming(
            plan=self._seconds["plan"],
            scatter=self._seconds["scatter"],
            commit=max(report.commit_s for report in reports),
            forward=max(report.forward_s for report in reports),
            gather=max(0.0, self._seconds["gather"] - slowest),
            select=self._seconds["select"],
        )
