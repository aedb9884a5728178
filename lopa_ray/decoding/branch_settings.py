"""Settings of how many branches a step has, for all decoders that evaluate several."""

from __future__ import annotations

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
    load, unless branches are drafts of which exactly the right ones count: then the number of steps does."""

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
