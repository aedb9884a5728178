"""How many branches a request gets in a step. Nothing else decides it.

`fixed` gives what the request asks for: its tokens then depend on nothing but itself. So they do with
`num_branches` auto, which follows the request's own steps.
`load` shares a number of branches (`max_branches`) among the requests in flight: few get many each, many get
few. Their tokens then depend on the load, unless exact verified lookahead keeps those of one branch. How many workers
there are plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.branch_settings import BranchSettings


def branches_in_step(settings: GenerationSettings, in_flight: int | None) -> int:
    """Branches of one request in the coming step, the anchor included; at least 1. `in_flight`: requests in all; None:
    the settings alone decide.

    A request with `num_branches` auto may have fewer; see `AutoBudget`.
    """
    if not isinstance(settings, BranchSettings):
        return 1
    limit = settings.branch_limit
    if in_flight is None or settings.branch_budget == "fixed":
        return limit
    return max(1, min(limit, settings.max_branches // max(1, in_flight)))


INITIAL_BRANCHES = 4
"""Branches that `num_branches` auto starts with."""

MIN_WIN_MARGIN = 0.005
"""Branch confidence that a later fork must win by for more branches to be worth their forwards."""


class AutoBudget:
    """Branches of one request, from the branch confidences of its own steps and nothing else.

    Forks are ordered by the confidence of the token that they add. If the second half of them beats the
    first half and the anchor by more than `MIN_WIN_MARGIN`, many branches have paid off, and the
    next step has half as many again. If not, it has one less.
    """

    def __init__(self, max_branches: int) -> None:
        self._max_branches = max_branches
        self.num_branches = min(max_branches, INITIAL_BRANCHES)
        """Branches of the next step, the anchor included: from 2 (if that many are allowed) to `max_branches`."""

    def observe(self, confidences: Sequence[float]) -> None:
        """Take in the branch confidences of a step: the forks', best creation confidence first, then the anchor's."""
        forks = len(confidences) - 1
        if forks < 1:
            return
        best_near = max(*confidences[: forks // 2], confidences[-1], -math.inf)
        if max(confidences[forks // 2 : -1]) - best_near > MIN_WIN_MARGIN:
            self.num_branches = min(self._max_branches, self.num_branches + self.num_branches // 2)
        else:
            self.num_branches = min(self._max_branches, max(2, self.num_branches - 1))
