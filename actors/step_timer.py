"""StepTimer: where the time of one step of a group goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lopa_ray.protocol.report import StepReport, StepTiming


class StepTimer:
    """Measures the phases of one step as its master runs them."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around a phase of the step: plan, scatter, gather or select."""
        began = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - began

    @property
    def seconds(self) -> float:
        """All phases so far, in seconds."""
        return sum(self._seconds.values())

    def timing(self, reports: Sequence[StepReport]) -> StepTiming | None:
        """The whole step, with what the workers report of their own parts. None for a step without workers."""
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
