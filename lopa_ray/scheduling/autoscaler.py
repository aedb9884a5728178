"""Scaling: how many workers a group should have, from its observed load. No clock, no I/O.

A policy is a pure function from an observed `Load` to a demand for workers. `Autoscaler` follows it slowly:
a demand has to last before the number of workers changes, and changes keep a distance from each other.
Workers change how fast a step is. How many branches it has is decided in `branch_budget.py`, and is none of this
file's business.
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
    """What a group was observed to do since the last observation."""

    at: float
    """Seconds on any clock that does not go back."""
    workers: int
    """Workers that take part in steps; others may still be starting."""
    in_flight: int
    """Requests that have a slot."""
    waiting: int
    """Requests that wait for one."""
    branches: float
    """Per step, of all requests together; 0 without a step."""
    step_s: float
    """Seconds per step; 0 without one."""


Policy: TypeAlias = Callable[[Load, float], float]
"""From a load and `ScalingSettings.target` to a demand for workers, which need be neither whole nor within bounds."""


def by_branches(load: Load, target: float) -> float:
    """So many that each evaluates `target` branches in a step."""
    return load.branches / target


def by_requests(load: Load, target: float) -> float:
    """One per `target` requests, in flight or waiting."""
    return (load.in_flight + load.waiting) / target


def by_step_time(load: Load, target: float) -> float:
    """So many that a step takes `target` seconds, if workers shared it evenly: never more than branches."""
    return min(load.workers * load.step_s / target, load.branches)


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {"branches": by_branches, "requests": by_requests, "step_time": by_step_time}
)


class LoadMeter:
    """Adds up the steps between two observations."""

    def __init__(self) -> None:
        self._steps, self._branches, self._seconds = 0, 0, 0.0

    def record_step(self, branches: int, seconds: float) -> None:
        """Count a step."""
        self._steps += 1
        self._branches += branches
        self._seconds += seconds

    def take_load(self, at: float, *, workers: int, in_flight: int, waiting: int) -> Load:
        """The load since the last call; starts counting anew."""
        steps = max(1, self._steps)
        load = Load(at, workers, in_flight, waiting, self._branches / steps, self._seconds / steps)
        self._steps, self._branches, self._seconds = 0, 0, 0.0
        return load


@dataclass(frozen=True, slots=True)
class _Trend:
    """Since when more, or fewer, workers have been in demand without a break."""

    since: float
    grows: bool
    least: int
    """The number closest to the present one that was in demand meanwhile."""


class Autoscaler:
    """Follows the demand of a policy. What it decides depends on the loads that it has seen and nothing else.

    A demand that lasts changes the number of workers by the least that was in demand meanwhile, so a load
    that fluctuates faster than that changes nothing.
    """

    def __init__(self, settings: ScalingSettings, workers: int) -> None:
        """`workers`: how many there should be to begin with."""
        self._settings = settings
        self._policy = POLICIES[settings.policy]
        self.desired_workers = workers
        """How many there should be."""
        self._trend: _Trend | None = None
        self._changed_at = -math.inf

    def observe(self, load: Load) -> int:
        """Take a load in; returns how many workers there should be from now on."""
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
        """Set the number from outside, which counts as a change."""
        self.desired_workers, self._changed_at, self._trend = workers, at, None

    def _demand(self, load: Load) -> int:
        # A sum of fractions may be more than a whole number by next to nothing.
        demand = math.ceil(self._policy(load, self._settings.target) - 1e-9)
        return max(self._settings.min_workers, min(self._settings.max_workers, demand))
