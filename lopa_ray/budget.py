"""BranchBudget: how many branches a request gets in a step. Nothing else decides it.

`fixed` gives what the request asks for, always: its tokens then depend on nothing but itself.
`load` shares a number of branches among the requests in flight: few get many each, many get
few. Their tokens then depend on the load. How many workers there are plays no part.
"""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.settings import GenerationSettings, LopaSettings


def requested_branches(settings: GenerationSettings) -> int:
    """What the settings ask for; decoders without lookahead have a single branch."""
    return settings.num_branches if isinstance(settings, LopaSettings) else 1


@dataclass(frozen=True, slots=True)
class BranchBudget:
    """A pure function of a request's settings and of how many requests are in flight."""

    shared: int = 16
    """Branches per step that all requests in flight have together under `load`."""

    def branches(self, settings: GenerationSettings, in_flight: int) -> int:
        """Branches of one request in the coming step, the anchor included; at least 1.

        Under `load` the request's `num_branches` is the most it gets.
        """
        wanted = requested_branches(settings)
        if isinstance(settings, LopaSettings) and settings.branch_budget == "load":
            return max(1, min(wanted, self.shared // max(1, in_flight)))
        return wanted
