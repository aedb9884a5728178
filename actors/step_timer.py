"""StepTimer: the time of each phase of one step of a group."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from lopa_ray.protocol.report import StepReport, StepTiming

P = ParamSpec("P")
T = TypeVar("T")


class StepTimer:
    """Measures the phases of each step: plan, scatter, gather and select."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        """By phase, of the last step that had it."""

    def around(self, phase: str, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function so that the time of each call counts as a phase of the step."""

        @wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._measure(phase):
                return function(*args, **kwargs)

        return measured

    def around_async(self, phase: str, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Wrap a coroutine function so that the time of each call counts as a phase of the step."""

        @wraps(function)
        async def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._measure(phase):
                return await function(*args, **kwargs)

        return measured

    @property
    def seconds(self) -> float:
        """All phases of the last step, in seconds."""
        return sum(self._seconds.values())

    def timing(self, reports: Sequence[StepReport]) -> StepTiming | None:
        """The last step, with what the workers report of their own parts. None for a step without workers."""
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

    @contextmanager
    def _measure(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[phase] = time.perf_counter() - began
