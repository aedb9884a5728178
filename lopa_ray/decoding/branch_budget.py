"""How many branches a request gets in a step. Nothing else decides it; the number of workers plays no part.

With branch_budget `fixed` the tokens of a request depend on nothing but itself, also with `num_branches` auto, which
follows the request's own steps. `load` shares `max_branches` among the requests in flight: the tokens then depend on
the load, unless exact verified lookahead keeps the tokens of one branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from lopa_ray.config.generation_settings import GenerationSettings

MAX_BRANCHES = 1024

NumBranches = Annotated[int, Field(ge=1, le=MAX_BRANCHES)] | Literal["auto"]


class BranchSettings(GenerationSettings):
    """How many branches a step has, for a decoder's settings to build on."""

    num_branches: NumBranches = 1
    """Branches per step, the anchor included; 1 is plain decoding. auto: max_branches at most, as many as have paid off
    in this request's own steps; where branches are drafts, as many as are probable enough."""

    max_branches: int = Field(default=16, ge=1, le=MAX_BRANCHES)
    """Most branches per step where num_branches is auto; and with branch_budget load, of all requests in flight."""

    branch_budget: Literal["fixed", "load"] = "fixed"
    """fixed: num_branches alone decides. load: fewer while many requests are in flight; the tokens then depend on the
    load, unless branches are drafts with exact acceptance: then only the number of steps does."""

    @property
    def branch_limit(self) -> int:
        return self.max_branches if self.num_branches == "auto" else self.num_branches

    @field_validator("num_branches", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        """One message, where each half of the type would have its own."""
        number = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BRANCHES
        if not (number or value == "auto"):
            raise ValueError(f"got {value!r}; allowed: a whole number from 1 to {MAX_BRANCHES}, or auto")
        return value


def branches_in_step(settings: GenerationSettings, in_flight: int | None) -> int:
    """Branches of one request in the coming step, the anchor included; at least 1, and fewer where `AutoBudget` says.
    `in_flight`: requests in all; None: the settings alone decide."""
    if not isinstance(settings, BranchSettings):
        return 1
    limit = settings.branch_limit
    if in_flight is None or settings.branch_budget == "fixed":
        return limit
    return max(1, min(limit, settings.max_branches // max(1, in_flight)))


INITIAL_BRANCHES = 4  # branches that `num_branches` auto starts with
MIN_WIN_MARGIN = 0.005  # by which a later fork must win for more branches to be worth their forwards


class AutoBudget:
    """Branches of one request, from the branch confidences of its own steps and nothing else. If the second half of the
    forks, in order of creation confidence, beats the first half and the anchor by more than `MIN_WIN_MARGIN`, the next
    step has half as many branches again. If not, it has one less."""

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
