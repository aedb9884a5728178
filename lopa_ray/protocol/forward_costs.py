"""ForwardCosts: what a worker's forward costs by its rows, and StepLoad: the step that a request's branches join."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Self


@dataclass(frozen=True, slots=True)
class ForwardCosts:
    """Milliseconds of a forward at some numbers of rows, ascending in both."""

    rows: tuple[int, ...]
    ms: tuple[float, ...]

    @classmethod
    def of(cls, ms_by_rows: Mapping[int, float]) -> Self:
        """A forward never counts as cheaper than one of fewer rows, whatever was measured."""
        rows, ms = zip(*sorted(ms_by_rows.items()), strict=True)
        return cls(rows, tuple(accumulate(ms, max)))

    def at(self, rows: int) -> float:
        """Milliseconds: of the fewest rows below these, else on a line through the nearest two numbers of rows."""
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.ms[0]
        above = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        (first, last), (low, high) = self.rows[above - 1 : above + 1], self.ms[above - 1 : above + 1]
        return low + (high - low) * (rows - first) / (last - first)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The load of the step that a request plans its branches for."""

    costs: ForwardCosts
    requests: int = 1  # in flight, this one included
    workers: int = 1

    def cost(self, branches: int, rows: int) -> float:
        """Milliseconds of the step if every request in flight has so many branches of so many rows: the forward of the
        worker with the most of them. Requests that count on each other like this share the rows that cost little."""
        return self.costs.at(-(-self.requests * branches // self.workers) * rows)
