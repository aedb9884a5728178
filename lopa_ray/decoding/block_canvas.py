"""Blocks of a canvas: their states, how the canvas grows and when a block may be cached."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from lopa_ray.decoding.canvas import Canvas
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Fill

BlockState: TypeAlias = Literal["active", "to_cache", "in_cache"]
"""active: being filled; to_cache: decided, K/V still to be written."""


@dataclass(slots=True)
class Block:
    """A span of the canvas that is filled, then cached, as one. `complete` is set once the block before is decided far
    enough, and stays: a complete block falls back to its best position when nothing passes the threshold."""

    start: int
    stop: int
    masks: int
    state: BlockState = "active"
    complete: bool = False

    @property
    def span(self) -> range:
        return range(self.start, self.stop)

    @property
    def decided_fraction(self) -> float:
        """Share of the block's positions that hold a token; of one without positions all do."""
        size = self.stop - self.start
        return (size - self.masks) / size if size else 1.0


class BlockCanvas(Canvas):
    """A canvas in blocks, which grows. Block 0 is the prompt, less what the first block has of it."""

    def __init__(
        self, prompt: list[int], mask_id: int, remainder: int = 0, beginning: Sequence[int] = ()
    ) -> None:
        """`beginning`: tokens of the answer that are decided as the prompt's are. `remainder`: so many tokens at the
        end of both are part of the block that is appended first."""
        super().__init__([*prompt, *beginning], len(prompt), mask_id)
        stop = len(self.ids) - remainder
        self.blocks = [Block(0, stop, 0, "to_cache" if stop else "in_cache", complete=True)]

    def copy(self) -> Self:
        copied = super().copy()
        copied.blocks = [Block(b.start, b.stop, b.masks, b.state, b.complete) for b in self.blocks]
        return copied

    @property
    def masks(self) -> int:
        return sum(block.masks for block in self.blocks)

    @property
    def active(self) -> list[Block]:
        return [block for block in self.blocks if block.state == "active"]

    @property
    def cacheable_end(self) -> int:
        """End of the leading run of blocks that are cached or about to be."""
        for block in self.blocks:
            if block.state == "active":
                return block.start
        return self.blocks[-1].stop

    def set_tokens(self, fills: Iterable[Fill]) -> None:
        for position, token in fills:
            if self.is_masked(position):
                next(block for block in reversed(self.blocks) if block.start <= position).masks -= 1
            self.ids[position] = token

    def grow(self, block_size: int, limit: int) -> None:
        """Append a block; positions that the prompt already occupies keep their tokens. No-op at `limit`."""
        start = self.blocks[-1].stop
        stop = min(start + block_size, limit)
        if stop > start:
            masks = stop - len(self.ids)
            self.ids.extend([self.mask_id] * masks)
            self.blocks.append(Block(start, stop, masks=masks))

    def mark_complete(self, threshold: float) -> None:
        """Mark each block complete whose predecessor is decided to `threshold`."""
        for before, block in zip(self.blocks, self.blocks[1:], strict=False):
            if before.decided_fraction >= threshold:
                block.complete = True

    def mark_to_cache(self, editable: Container[int] = ()) -> None:
        """active → to_cache for every block without masks that has no active block before it. Blocks that start at one
        of `editable` stay active, because later steps may edit their tokens."""
        for block in self.blocks:
            if block.state == "active":
                if block.masks or block.start in editable:
                    return
                block.state = "to_cache"

    def mark_cached(self) -> None:
        """to_cache → in_cache; called once their K/V is staged for a commit."""
        for block in self.blocks:
            if block.state == "to_cache":
                block.state = "in_cache"

    def block_views(self) -> tuple[BlockView, ...]:
        return tuple(BlockView(b.start, b.stop, b.state, b.masks, b.complete) for b in self.blocks)
