"""StartPhases: the time of each phase of a group's start."""

from __future__ import annotations

import time
from itertools import pairwise


class StartPhases:
    """A clock that runs from when it is made; each phase begins when the phase before has ended."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ends: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """The phase ends now. If several actors go through it, the last call counts."""
        self._ends[phase] = time.monotonic()

    @property
    def seconds(self) -> dict[str, float]:
        edges = [self._began, *self._ends.values()]
        return {phase: end - begin for phase, (begin, end) in zip(self._ends, pairwise(edges), strict=True)}
