"""Autoscaler: decides from the observed load how many workers a group should have. It reads no clock. A demand for
workers has to last before their number changes, and there is a minimum time between two changes: both follow from how
long a worker takes to start, because that is the cost of a change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from lopa_ray.config.scaling_settings import PolicyName, ScalingSettings

LOOKS_PER_START = 8  # observations in the time that a worker takes to start; no change follows sooner
LOOKS_TO_GROW = 2  # observations after the first for which more workers must be in demand
LOOKS_TO_SHRINK = 4 * LOOKS_PER_START  # the same for fewer workers


@dataclass(frozen=True, slots=True)
class Load:
    workers: int  # workers that take part in steps; further workers may be starting
    in_flight: int
    waiting: int
    branches: float  # mean number of branches per step, over all requests; 0 if there was no step
    step_s: float  # mean seconds per step; 0 if there was no step


Policy: TypeAlias = Callable[[Load, float], float]
"""Maps a load and `ScalingSettings.target` to a demand for workers, which may be fractional and out of bounds."""


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {
        # Each worker evaluates `target` branches per step.
        "branches": lambda load, target: load.branches / target,
        # One worker per `target` requests, in flight or waiting.
        "requests": lambda load, target: (load.in_flight + load.waiting) / target,
        # A step takes `target` seconds, if it is divided evenly; at most one worker per branch.
        "step_time": lambda load, target: min(load.workers * load.step_s / target, load.branches),
    }
)


class LoadMeter:
    """Accumulates branches and times of the steps between two observations."""

    def __init__(self) -> None:
        self._steps, self._branches, self._seconds = 0, 0, 0.0

    def record_step(self, branches: int, seconds: float) -> None:
        self._steps += 1
        self._branches += branches
        self._seconds += seconds

    def take_load(self, *, workers: int, in_flight: int, waiting: int) -> Load:
        """Return the load since the last call, and reset the counters."""
        steps = max(1, self._steps)
        load = Load(workers, in_flight, waiting, self._branches / steps, self._seconds / steps)
        self._steps, self._branches, self._seconds = 0, 0, 0.0
        return load


class Autoscaler:
    """Follows the demand of a policy; it should observe `LOOKS_PER_START` loads while a worker starts. When a demand
    has lasted long enough, the number of workers changes to the demanded number that was closest to the current one
    during that time."""

    def __init__(self, settings: ScalingSettings, min_workers: int, workers: int) -> None:
        self._settings, self._min_workers = settings, min_workers
        self._policy = POLICIES[settings.policy]
        self.desired_workers = workers
        self._demands: list[int] = []  # since when more workers are in demand without a break, or fewer
        self._looks = LOOKS_PER_START  # observations since the last change

    def observe(self, load: Load) -> int:
        """Returns the number of workers that the group should have from now on."""
        demand, current = self._demand(load), self.desired_workers
        self._looks += 1
        grows = demand > current
        if demand == current or (self._demands and (self._demands[-1] > current) != grows):
            self._demands = []
        if demand != current:
            self._demands.append(demand)
            lasted = len(self._demands) > (LOOKS_TO_GROW if grows else LOOKS_TO_SHRINK)
            if lasted and self._looks >= LOOKS_PER_START:
                self.override(min(self._demands) if grows else max(self._demands))
        return self.desired_workers

    def override(self, workers: int) -> None:
        """Set the number of workers. The next change keeps its distance from it as from any other."""
        self.desired_workers, self._looks, self._demands = workers, 0, []

    def _demand(self, load: Load) -> int:
        # Rounding may bring a sum of fractions slightly above a whole number.
        demand = math.ceil(self._policy(load, self._settings.target) - 1e-9)
        return max(self._min_workers, min(self._settings.max_workers, demand))
