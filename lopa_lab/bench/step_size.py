"""StepSize: how much a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

from lopa_lab.bench.step_plans import plan_of
from lopa_ray.protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class StepSize:
    """Requests with so many branches each, of windows of masks behind a cached prefix."""

    requests: int
    branches: int
    """Of each request."""
    window: int
    """Positions."""
    prefix: int
    """Positions."""

    @classmethod
    def grid(
        cls,
        requests: Sequence[int],
        branches: Sequence[int],
        windows: Sequence[int],
        prefixes: Sequence[int],
    ) -> list[Self]:
        """All combinations."""
        return [cls(*each) for each in product(requests, branches, windows, prefixes)]

    @property
    def rows(self) -> int:
        """Of the packed forward."""
        return self.requests * self.branches * self.window

    def plans(self, mask_token_id: int, *, step: int = 2, committed: int = 0, staged: int = 0) -> list[Plan]:
        """A plan per request; see `plan_of`."""
        plan = plan_of(
            mask_token_id,
            self.branches,
            self.window,
            start=self.prefix,
            step=step,
            committed=committed,
            staged=staged,
        )
        return [plan] * self.requests
