"""How many branches a request gets in a step. Nothing else decides it; the number of workers plays no part.

With branch_budget `fixed` the tokens of a request depend on nothing but itself, also with `num_branches` auto, which
follows the request's own steps. `load` shares `max_branches` among the requests in flight: the tokens then depend on
the load, unless exact verified lookahead keeps the tokens of one branch.
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

    If the second half of the forks, in order of creation confidence, beats the first half and the anchor by more than
    `MIN_WIN_MARGIN`, the next step has half as many branches again. If not, it has one less.
    """

    def __init__(self, max_branches: int) -> None:
        self._max_branches = max_branches
        self.num_branches = min(max_branches, INITIAL_BRANCHES)

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
