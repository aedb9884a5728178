"""How many branches a request gets in a step. Nothing else decides it; the number of workers plays no part.

With branch_budget `fixed` the tokens of a request depend on nothing but itself, also with `num_branches` auto: among
forks it follows the request's own steps, and the number of exact drafts, which follows their cost and the load, decides
the number of steps alone. `load` shares `max_branches` among the requests in flight: the tokens then depend on
the load, unless exact verified lookahead keeps the tokens of one branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.protocol.forward_costs import StepLoad

MAX_BRANCHES = 1024

NumBranches = Annotated[int, Field(ge=1, le=MAX_BRANCHES)] | Literal["auto"]


class BranchSettings(GenerationSettings):
    """How many branches a step has, for a decoder's settings to build on."""

    num_branches: NumBranches = 1
    """Branches per step, the anchor included; 1 is plain decoding. auto: max_branches at most, as many as have paid off
    in this request's own steps; where branches are drafts with exact acceptance, as many as are worth their time at
    the present load (`group.forward_costs`), so that `steps` depends on the load, and no token does."""

    max_branches: int = Field(default=16, ge=1, le=MAX_BRANCHES)
    """Most branches per step where num_branches is auto; and with branch_budget load, of all requests in flight."""

    branch_budget: Literal["fixed", "load"] = "fixed"
    """fixed: num_branches alone decides. load: fewer while many requests are in flight; the tokens then depend on the
    load, unless branches are drafts with exact acceptance: then only the number of steps does."""

    @property
    def branch_limit(self) -> int:
        return self.max_branches if self.num_branches == "auto" else self.num_branches

    @property
    def weighs_costs(self) -> bool:
        """Whether measured costs decide the number of branches. No token may depend on it then."""
        return self.num_branches == "auto"

    def of_one_branch(self) -> Self:
        """The settings without lookahead and guesses."""
        return self.replace(num_branches=1)

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


ASSUMED_COST = (
    0.1  # of a further branch, in steps of one branch: where costs are not known, or tokens depend on them
)


class CostBudget:
    """As many branches as have the highest gain per time, over all steps of a request. A search offers them, in order
    of their gains. A step is worth its gain less what its time gains elsewhere: at `rate`, the gain per time of the
    request's steps so far. Without one its own gain per time counts."""

    def __init__(self, costs: Sequence[float], gain: float = 0.0, rate: float | None = None) -> None:
        """`costs`: of a step with 1, 2 ... branches, any unit of time. `gain`: what a step gains without a branch."""
        self.num_branches = 0
        """The number of the branches that were taken with the highest worth."""
        self._costs = costs
        self._gain = gain
        self._rate = rate
        self._taken = 0
        self._most_worth = -math.inf

    @classmethod
    def of(
        cls,
        settings: BranchSettings,
        load: StepLoad | None,
        branches: int,
        rows: int,
        gain: float = 0.0,
        rate: float | None = None,
    ) -> Self:
        """For at most so many branches, which have about so many rows each. A fixed number is taken as if branches were
        free."""
        numbers = range(1, branches + 1)
        if settings.num_branches != "auto":
            return cls([1.0] * branches, gain)
        if load is None or not settings.weighs_costs:
            return cls([1 + ASSUMED_COST * (number - 1) for number in numbers], gain)
        return cls([load.cost(number, rows) for number in numbers], gain, rate)

    @property
    def most(self) -> int:
        return len(self._costs)

    def wants(self, gain: float) -> bool:
        """Whether further branches can be worth more, if none of them gains more than this."""
        further = enumerate(self._costs[self._taken :], 1)
        return any(
            self._worth(self._gain + number * gain, cost) > self._most_worth for number, cost in further
        )

    def take(self, gain: float) -> None:
        """Take a branch that gains so much, no more than the one before."""
        self._gain += gain
        self._taken += 1
        worth = self._worth(self._gain, self._costs[self._taken - 1])
        if worth > self._most_worth:
            self._most_worth, self.num_branches = worth, self._taken

    def _worth(self, gain: float, cost: float) -> float:
        return gain / cost if self._rate is None else gain - self._rate * cost
