"""Autoscaler: decides from the observed load how many workers a group should have. It reads no clock and does no I/O.

A policy is a pure function from an observed `Load` to a demand for workers. `Autoscaler` follows the demand slowly:
the demand has to last for some time before the number of workers changes, and there is a minimum time between two
changes. The number of workers changes only the time of a step. The number of branches of a step is decided in
`branch_budget.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from lopa_ray.config.scaling_settings import PolicyName, ScalingSettings


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a group since the last observation."""

    at: float
    """Time of the observation in seconds, on any monotonic clock."""
    workers: int
    """Workers that take part in steps; further workers may be starting."""
    in_flight: int
    """Requests that have a slot."""
    waiting: int
    """Requests that wait for a slot."""
    branches: float
    """Mean number of branches per step, over all requests; 0 if there was no step."""
    step_s: float
    """Mean seconds per step; 0 if there was no step."""


Policy: TypeAlias = Callable[[Load, float], float]
"""Computes a demand for workers from a load and `ScalingSettings.target`.

The demand may be fractional and may lie outside the bounds of the settings.
"""


def by_branches(load: Load, target: float) -> float:
    """The number of workers at which each evaluates `target` branches per step."""
    return load.branches / target


def by_requests(load: Load, target: float) -> float:
    """One worker per `target` requests, in flight or waiting."""
    return (load.in_flight + load.waiting) / target


def by_step_time(load: Load, target: float) -> float:
    """The number of workers at which a step takes `target` seconds, if it is divided evenly; at most one per branch."""
    return min(load.workers * load.step_s / target, load.branches)


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {"branches": by_branches, "requests": by_requests, "step_time": by_step_time}
)


class LoadMeter:
    """Accumulates branches and times of the steps between two observations."""

    def __init__(self) -> None:
        self._steps, self._branches, self._seconds = 0, 0, 0.0

    def record_step(self, branches: int, seconds: float) -> None:
        """Add a step with that many branches, which took `seconds` s."""
        self._steps += 1
        self._branches += branches
        self._seconds += seconds

    def take_load(self, at: float, *, workers: int, in_flight: int, waiting: int) -> Load:
        """Return the load since the last call, and reset the counters. `at` is the time in seconds."""
        steps = max(1, self._steps)
        load = Load(at, workers, in_flight, waiting, self._branches / steps, self._seconds / steps)
        self._steps, self._branches, self._seconds = 0, 0, 0.0
        return load


@dataclass(frozen=True, slots=True)
class _Trend:
    """A demand for more workers, or for fewer, that has lasted without interruption."""

    since: float
    """Time in seconds at which it began."""
    grows: bool
    """Whether the demand is for more workers."""
    least: int
    """The demanded number of workers, since then, that is closest to the current number."""


class Autoscaler:
    """Follows the demand of a policy. Its decisions depend only on the observed loads.

    When a demand has lasted long enough, the number of workers changes to the demanded number that was closest to the
    current one during that time. A demand that returns to the current number earlier than that changes nothing.
    """

    def __init__(self, settings: ScalingSettings, workers: int) -> None:
        """`workers` is the initial number of workers."""
        self._settings = settings
        self._policy = POLICIES[settings.policy]
        self.desired_workers = workers
        """Number of workers that the group should have."""
        self._trend: _Trend | None = None
        self._changed_at = -math.inf

    def observe(self, load: Load) -> int:
        """Process an observed load; returns the number of workers that the group should have from now on."""
        settings, desired = self._settings, self._demand(load)
        if desired == self.desired_workers:
            self._trend = None
            return self.desired_workers
        grows, trend = desired > self.desired_workers, self._trend
        if trend is None or trend.grows != grows:
            trend = _Trend(load.at, grows, desired)
        self._trend = _Trend(trend.since, grows, (min if grows else max)(trend.least, desired))
        lasted = load.at - trend.since >= (settings.grow_after_s if grows else settings.shrink_after_s)
        if lasted and load.at - self._changed_at >= settings.cool_down_s:
            self.override(self._trend.least, load.at)
        return self.desired_workers

    def override(self, workers: int, at: float) -> None:
        """Set the number of workers at time `at` in seconds. This counts as a change for the cool-down."""
        self.desired_workers, self._changed_at, self._trend = workers, at, None

    def _demand(self, load: Load) -> int:
        # Rounding may bring a sum of fractions slightly above a whole number.
        demand = math.ceil(self._policy(load, self._settings.target) - 1e-9)
        return max(self._settings.min_workers, min(self._settings.max_workers, demand))
