"""The section `decisions` of a configuration."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.config.strict import StrictModel

Prefix = Literal["input", "joint"]  # how lanes get the input; see `DecisionSettings.prefix`

DecisionType = Literal["predicate", "choice", "score"]  # what a question asks for


class DecisionSettings(StrictModel):
    """Settings of answers to typed questions. A null is the checkpoint's value, in its decisions.json."""

    prefix: Prefix | None = None
    """input: the input is computed once, alone, and all questions read its K/V. joint: each question is computed with
    the input before it, which then sees the question as far as the model's attention allows. Where null is left, input
    if both are the same (block-causal models), and else joint."""

    rotations: int | None = Field(default=None, ge=1, le=255)
    """Orders of a question's choices, each rotated against the others, whose probabilities are averaged. Each takes
    forwards of its own. Where null is left, 1."""

    def prefix_for(self, attention: PromptAttention) -> Prefix:
        """`prefix`, or where that is null the prefix that computes the model's own forward."""
        return self.prefix or ("input" if attention.is_exact else "joint")

    def with_defaults(self, defaults: DecisionSettings) -> Self:
        """The same, with `defaults` for what is null."""
        return self.replace(**{name: getattr(defaults, name) for name, value in self if value is None})

    def given(self) -> dict[str, Any]:
        """The settings that are not null."""
        return {name: value for name, value in self if value is not None}
