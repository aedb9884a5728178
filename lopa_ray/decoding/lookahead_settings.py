"""Settings of the lookahead, which are the same for all decoders that have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.decoding.branch_budget import BranchSettings
from lopa_ray.decoding.branch_confidence import fits_ranking, parse_metric

OF_FORKS = ("branch_confidence", "creation_confidence_alpha", "tokens_per_fork")
"""Settings that verified lookahead has no use for."""


class LookaheadSettings(BranchSettings):
    """LoPA's lookahead (arXiv 2512.16229), for a decoder's settings to build on."""

    lookahead: Literal["lopa", "verified"] = "lopa"
    """The kind of the branches other than the anchor. lopa: forks that add a token each, one of which may win, and
    change the answer. verified: drafts of the next steps, which count if one branch would have taken them;
    `num_branches` is then auto unless it is set."""

    acceptance: Literal["exact"] | Annotated[float, Field(ge=0.0, le=1.0)] = "exact"
    """lookahead verified: which drafts count. exact: drafts that one branch would fill, so the answer is the same as
    with one branch. A probability: also drafts with further tokens of a higher probability."""

    branch_confidence: str = "mean"
    """The score of a branch by its empty positions: mean, or another of `METRICS`, as in bottom(0.3)."""

    creation_confidence_alpha: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the creation confidence (1.0 for the anchor) in the branch's score."""

    tokens_per_fork: int = Field(default=1, ge=1, le=2)
    """Tokens that a lookahead branch adds to the anchor. 1: LoPA. 2: the pairs of the best-ranked positions, which
    decide more tokens per forward pass with as many branches."""

    @property
    def is_verified(self) -> bool:
        return self.lookahead == "verified" and self.branch_limit > 1

    @property
    def implied(self) -> frozenset[str]:
        """`num_branches` auto with drafts, where it is the default. See `StrictModel.implied`."""
        auto = self.lookahead == "verified" and self.num_branches == "auto"
        return super().implied | ({"num_branches"} if auto else frozenset())

    @model_validator(mode="before")
    @classmethod
    def _drafts_by_their_cost(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("lookahead") == "verified":
            return {"num_branches": "auto", **values}
        return values

    @property
    def weighs_costs(self) -> bool:
        return super().weighs_costs and self.is_verified and self.acceptance == "exact"

    def of_one_branch(self) -> Self:
        return self.replace(num_branches=1, lookahead="lopa", acceptance="exact")

    @field_validator("acceptance", mode="before")
    @classmethod
    def _exact_or_probability(cls, value: Any) -> Any:
        """One message, where each half of the type would have its own."""
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        if not (number or value == "exact"):
            raise ValueError(f"got {value!r}; allowed: a number from 0 to 1, or exact")
        return value

    @field_validator("branch_confidence")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        parse_metric(value)
        return value

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.lookahead == "verified":
            for name in filter(self.is_changed, OF_FORKS):
                why = f"has no forks that compete; leave {name} out or use lookahead lopa"
                yield name, f" {getattr(self, name)!r} with lookahead verified, which {why}"
        elif self.acceptance != "exact":
            remedy = "set lookahead to verified or leave acceptance out"
            yield "acceptance", f" {self.acceptance} without drafts; {remedy}"
        if not fits_ranking(self.branch_confidence, self.ranking):
            why = "multiplies scores, but ranking neg_entropy has negative scores"
            remedy = "use ranking probability or margin, or branch_confidence mean"
            yield "branch_confidence", f" {self.branch_confidence} {why}; {remedy}"
