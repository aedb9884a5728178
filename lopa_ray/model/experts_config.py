"""ExpertsConfig: the shape of a mixture of experts, and how rows are routed to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

RouterKind: TypeAlias = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """What the layers behind the first `dense_layers` have in place of an MLP.

    `router` says how scores become weights. softmax (Qwen3-MoE, SDAR-MoE): probabilities over all experts. sigmoid
    (DeepSeek-V3, LLaDA2): each expert for itself, with a bias that takes part in choosing alone. The weights of the
    chosen ones are divided by their sum and multiplied by `scale`.
    With more than one of `groups` only experts of the best `kept_groups` are chosen; a group counts as much as its two
    best experts. `shared` experts of the same width take every row, beside those that are chosen.
    """

    router: RouterKind
    count: int
    per_token: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0

    @property
    def shared_width(self) -> int:
        """Of the MLP that the shared experts make up."""
        return self.shared * self.width

    @property
    def problem(self) -> str | None:
        """Why rows cannot be routed like that, or None."""
        group = self.count // self.groups
        if self.count % self.groups or (self.groups > 1 and group < 2):
            return f"{self.count} experts in {self.groups} groups; groups are alike, and have two experts or more"
        if self.kept_groups > self.groups or self.per_token > self.kept_groups * group:
            return (
                f"{self.per_token} of {self.count} experts per token, from {self.kept_groups} of {self.groups} groups; "
                "there are not as many"
            )
        return None
