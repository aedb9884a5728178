"""Decoders that finish one block before they begin the next: what they share. They differ in what a call feeds and
reads (its `Window`) and in the positions it fills (`_unmasking_rule`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Branch, Fill


class BlockwiseSession(FillingSession[Canvas]):
    """One request: all positions that it will have, and the block that is being filled."""

    def _begin(self) -> None:
        super()._begin()
        answer = self.given.canvas(self.settings.max_new_tokens, self.vocabulary.mask_token_id)
        self._canvas = Canvas(self.prompt + answer, len(self.prompt), self.vocabulary.mask_token_id)
        self._begin_block_at(len(self.prompt))

    def _begin_block_at(self, position: int) -> None:
        """Go on to the block of a position, or to the first later block that has masks, if there is one."""
        self._block = self._block_at(position)
        masked_positions = self._canvas.masked_positions
        while not masked_positions(self._block) and self._block.stop < self.max_len:
            self._block = self._block_at(self._block.stop)
        self._lay_draft(self._canvas, self._block)
        self._open_positions = masked_positions(self._block)  # masked when the block began
        self._calls = 0  # calls that have filled the current block

    # What a decoder provides

    @abstractmethod
    def _block_at(self, position: int) -> range:
        """The block in which `position` lies."""

    @abstractmethod
    def _window(self) -> Window:
        """The window of the coming call, the same for all its branches."""

    # What they share

    def _windows(self, canvases: Sequence[Canvas]) -> Sequence[Window]:
        return [self._window()] * len(canvases)

    @property
    def exhausted(self) -> bool:
        return not self._canvas.masked_positions(range(self._block.start, self.max_len))

    @property
    def _block_answer_span(self) -> range:
        """The current block, less what the prompt has of it."""
        return range(max(self._block.start, len(self.prompt)), self._block.stop)

    @property
    def _block_is_final(self) -> bool:
        return not self._canvas.masked_positions(self._block)

    def _end_step(self, branch: Branch) -> None:
        """Go on to the next block that has masks, if there is one, when this block is final."""
        self._calls += bool(branch.scored)
        if self._block_is_final and self._block.stop < self.max_len:
            self._begin_block_at(self._block.stop)

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        return self._calls > 0 and len(self.scored_masks()) > len(fills)

    def rule_blocks(self, beyond: Collection[Fill] = (), calls: int = 0) -> list[RuleBlock] | None:
        rule = self._threshold_and_least(self._calls + calls)
        if rule is None:
            return None
        masked = self._branches[0].canvas.masked_positions(self.plan().branches[0].scored)
        filled = {position for position, _ in beyond}
        positions = [p for p in masked if p not in filled]
        return [RuleBlock(positions, *rule)] if positions else []

    def _threshold_and_least(self, call: int) -> tuple[float, int] | None:
        """The rule of a call on the current block as in `RuleBlock`; None if it is another."""
        return None

    def block_views(self) -> tuple[BlockView, ...]:
        first = len(self.prompt)
        views = [BlockView(0, first, "in_cache", 0, True)]
        end = first + len(self.generated)
        while first < end:
            block = self._block_at(first)
            masks = len(self._canvas.masked_positions(range(first, block.stop)))
            is_final = not masks and (block != self._block or self._block_is_final)
            state = "in_cache" if is_final else "active"
            views.append(BlockView(first, block.stop, state, masks, block.start <= self._block.start))
            first = block.stop
        return tuple(views)
