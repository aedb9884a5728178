"""BranchBudget: how many branches a request gets in a step. Nothing else decides it.

`fixed` gives what the request asks for: its tokens then depend on nothing but itself. So they do with
`num_branches` auto, which follows the request's own steps.
`load` shares a number of branches among the requests in flight: few get many each, many get
few. Their tokens then depend on the load. How many workers there are plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.lookahead_settings import LookaheadSettings


def requested_branches(settings: GenerationSettings) -> int:
    """The most that the settings ask for; decoders without lookahead have a single branch."""
    return settings.branch_limit if isinstance(settings, LookaheadSettings) else 1


@dataclass(frozen=True, slots=True)
class BranchBudget:
    """A pure function of a request's settings and of how many requests are in flight."""

    shared: int = 16
    """Branches per step that all requests in flight have together under `load`."""

    def branches(self, settings: GenerationSettings, in_flight: int) -> int:
        """Branches of one request in the coming step, the anchor included; at least 1.

        It is the most that a request with `num_branches` auto has in that step; see `AutoBudget`.
        """
        wanted = requested_branches(settings)
        if isinstance(settings, LookaheadSettings) and settings.branch_budget == "load":
            return max(1, min(wanted, self.shared // max(1, in_flight)))
        return wanted


FIRST_BRANCHES = 4
"""Branches that `num_branches` auto starts with."""

WORTH = 0.005
"""Branch confidence that a wider field must win by to be worth its forwards."""


class AutoBudget:
    """Branches of one request, from the races that it has had and nothing else.

    Forks are ordered by the confidence of the token that they add. If the second half of them beats the
    first half and the anchor by more than `WORTH`, a wide field has paid off, and the next one is wider by
    half. If not, the next one is smaller by one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.branches = min(most, FIRST_BRANCHES)
        """Branches of the next step, the anchor included: from 2 (if that many are allowed) to `most`."""

    def observe(self, confidences: Sequence[float]) -> None:
        """Take in a race: the forks' branch confidences, best created first, then the anchor's."""
        forks = len(confidences) - 1
        if forks < 1:
            return
        near = max(*confidences[: forks // 2], confidences[-1], -math.inf)
        if max(confidences[forks // 2 : -1]) - near > WORTH:
            self.branches = min(self._most, self.branches + self.branches // 2)
        else:
            self.branches = min(self._most, max(2, self.branches - 1))
