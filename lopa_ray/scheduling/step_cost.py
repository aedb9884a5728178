"""StepCost: how the time of a step depends on its rows, learnt from the steps of a group."""

from __future__ import annotations

import math

DECAY = 0.98  # how much an observation counts one step later
MIN_SPREAD = 0.1  # standard deviation of the rows ÷ their mean from which on fixed and per row are told apart


class StepCost:
    """Seconds of a step = fixed + per_row · rows, by least squares over the last steps."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0
        self.free_rows = 0.0  # that take as long as the fixed part of a step; 0 as long as that is not known

    def record(self, rows: int, seconds: float) -> None:
        self._weight = DECAY * self._weight + 1
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._rows_rows = DECAY * self._rows_rows + rows * rows
        self._rows_seconds = DECAY * self._rows_seconds + rows * seconds
        rows_mean, seconds_mean = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_rows / self._weight - rows_mean**2
        if seconds_mean > 0 and variance > (MIN_SPREAD * rows_mean) ** 2:
            per_row = (self._rows_seconds / self._weight - rows_mean * seconds_mean) / variance
            fixed = seconds_mean - per_row * rows_mean
            self.free_rows = max(0.0, fixed / per_row) if per_row > 0 else math.inf
