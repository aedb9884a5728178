"""ExpertsConfig: the shape of a mixture of experts, and how rows are routed to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

RouterKind: TypeAlias = Literal["softmax", "sigmoid"]

ExpertParallel: TypeAlias = bool | Literal["auto"]

MIN_COLUMNS = 64
"""Columns of an expert below which a shard gets whole experts, not a part of each: a tile of the product has 64."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts that layers after the first `dense_layers` have in place of an MLP.

    `router`: how scores become weights. softmax (Qwen3-MoE, SDAR-MoE): probabilities over all experts. sigmoid
    (DeepSeek-V3, LLaDA2): each expert for itself, with a bias that takes part in choosing alone. The weights of the
    chosen experts are divided by their sum and multiplied by `scale`. Only experts of the best `kept_groups` are
    chosen; a group counts as much as its two best experts. `shared` experts take every row. `parallel`: whether shards
    have whole experts. `capacity`: how many experts the rows of a block of `block_size` positions choose among,
    whatever their groups; 0: each row chooses for itself. `shards`: of how many this is one.
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
    capacity: int = 0
    block_size: int = 32
    parallel: ExpertParallel = "auto"
    shards: int = 1

    def are_whole(self, shards: int) -> bool:
        """Whether each of so many shards has whole experts. With auto they do where a part of each would have less than
        `MIN_COLUMNS` columns, or parts would not be equal. Otherwise parts are better: shards then have equal work,
        whichever experts are chosen."""
        if self.parallel == "auto":
            return shards <= self.count and (self.width % shards > 0 or self.width < MIN_COLUMNS * shards)
        return self.parallel

    @property
    def columns(self) -> int:
        return self.width if self.are_whole(self.shards) else self.width // self.shards

    @property
    def shared_columns(self) -> int:
        return self.shared * self.width // self.shards

    @property
    def problem(self) -> str | None:
        """Why rows cannot be routed like that, or None."""
        if self.capacity and not self.per_token <= self.capacity <= self.count:
            return f"{self.per_token} of {self.capacity} experts per block, of {self.count}; there are not as many"
        group = self.count // self.groups
        if self.count % self.groups or (self.groups > 1 and group < 2):
            return f"{self.count} experts in {self.groups} groups; groups are alike, and have two experts or more"
        if self.kept_groups > self.groups or self.per_token > self.kept_groups * group:
            return (
                f"{self.per_token} of {self.count} experts per token, from {self.kept_groups} of {self.groups} groups; "
                "there are not as many"
            )
        return None
