"""The base of block-parallel decoders, which append blocks before earlier blocks are done. They differ in when the
canvas grows (`_may_grow`), in what a position sees and in where blocks begin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

from pydantic import Field

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branching import Fork, Scores
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import RuleBlock, select_by_block
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Branch, Fill, Segment
from lopa_ray.protocol.sampling_params import SamplingParams


class BlockParallelSettings(GenerationSettings):
    """The settings that these decoders share."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`. Where blocks are counted from position 0,
    what the model was trained with."""

    block_add_threshold: float = Field(default=0.1, ge=0.0, le=1.0)
    """A block is appended when the last block is decided to at least this share."""

    decoded_token_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """A block becomes complete (it fills at least one position per step) when the block
    before it is decided to at least this share."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled."""

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention("blocks", self.block_size)


class BlockParallelSession(FillingSession[BlockCanvas]):
    settings: BlockParallelSettings

    # What a decoder provides

    @property
    @abstractmethod
    def _tiled(self) -> bool:
        """Whether blocks are counted from position 0, so that what is left of the prompt lies in the answer's first
        block. If not, the prompt is one block."""

    # What they share, by default for block-causal attention

    @property
    def exact_cache(self) -> bool:
        return self._shares_staged

    @property
    def _shares_staged(self) -> bool:
        return True

    def _begin(self) -> None:
        super()._begin()
        first, size, beginning = len(self.prompt), self.settings.block_size, self.given.beginning
        remainder = (len(beginning) + (first if self._tiled else 0)) % size
        self._canvas = BlockCanvas(self.prompt, self.vocabulary.mask_token_id, remainder, beginning)
        while len(self._canvas) < first + self.given.end:
            self._canvas.grow(size, self.max_len)
        given = self.given.tokens.items()
        self._canvas.set_tokens((first + at, token) for at, token in given if at >= len(beginning))

    def _view_stop(self, position: int) -> int:
        return next(block.stop for block in self._canvas.blocks if position < block.stop)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Models of block diffusion are sampled as SDAR's decoder samples them."""
        return replace(super().sampling_params, top_k_first=self._tiled)

    @property
    def exhausted(self) -> bool:
        canvas = self._canvas
        return not canvas.masks and not canvas.active and not self._has_room(canvas)

    def _has_room(self, canvas: BlockCanvas) -> bool:
        """Whether there is a next block, at some step: there are positions for it, and the answer has no end."""
        return len(canvas) < self.max_len and not self.has_ended(canvas.generated)

    def _may_grow(self, canvas: BlockCanvas) -> bool:
        """Whether the coming step appends a block, if there is one: the last block is decided far enough."""
        return canvas.blocks[-1].decided_fraction >= self.settings.block_add_threshold

    @property
    def _complete_threshold(self) -> float:
        return self.settings.decoded_token_threshold

    # Planning

    def _forked(self, fork: Fork) -> BlockCanvas:
        """A branch grows on its own: a fork may earn its next block before the anchor. Where blocks tile, a fork that
        decides all there is does not: it has nothing left to be unsure of, as in other decoders of these models."""
        canvas = super()._forked(fork)
        is_decided = self._tiled and bool(fork.decisions) and not canvas.masks
        if not is_decided and self._has_room(canvas) and self._may_grow(canvas):
            canvas.grow(self.settings.block_size, self.max_len)
        canvas.mark_complete(self._complete_threshold)
        return canvas

    def _windows(self, canvases: Sequence[BlockCanvas]) -> Sequence[Window]:
        # The anchor alone decides which blocks are cached, so these are the same on every branch.
        to_cache = [block for block in self._canvas.blocks if block.state == "to_cache"]
        cacheable_end = self._canvas.cacheable_end
        start = to_cache[0].start if to_cache else cacheable_end
        # Tokens of the prompt in the answer's first block are not scored, and so not edited.
        first_scored = max(cacheable_end, len(self.prompt)) if self._scores_decided else cacheable_end
        return [
            Window(
                range(start, len(canvas)),
                self._segments(canvas, start),
                scored=range(first_scored, len(canvas)),
                cached=(range(start),) if start else (),
                to_stage=(range(start, cacheable_end),) if to_cache else (),
                stage_shared=self._shares_staged,
            )
            for canvas in canvases
        ]

    def _segments(self, canvas: BlockCanvas, start: int) -> tuple[Segment, ...]:
        """The segments that the rows from `start` on see: their own block and the blocks before it."""
        blocks = (block for block in canvas.blocks if block.stop > start)
        if not self._tiled:
            return tuple((block.stop, block.stop) for block in blocks)
        size = self.settings.block_size  # what the prompt's block has of blocks of this size, too
        tiles = ((*range(block.start + size, block.stop, size), block.stop) for block in blocks)
        return tuple((stop, stop) for stops in tiles for stop in stops)

    # Deciding

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        return select_by_block(self._canvas, scores, self.settings.confidence_threshold)

    @property
    def _fills_last_mask(self) -> bool:
        """True where blocks tile, as in other decoders of these models."""
        return self._tiled and super()._fills_last_mask

    def _end_step(self, branch: Branch) -> None:
        self._canvas.mark_cached()
        self._canvas.mark_to_cache()

    # Drafts

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        canvas = self._branches[0].canvas
        first = canvas.active[0]
        # A block that the planned step appends is part of the answer from the next step on.
        is_new = len(canvas) > len(self._canvas)
        if is_new or first.masks <= sum(position < first.stop for position, _ in fills):
            return False
        return not (self._has_room(canvas) and self._may_grow(canvas.with_fills(fills)))

    def rule_blocks(self, beyond: Collection[Fill] = (), calls: int = 0) -> list[RuleBlock]:
        canvas = self._branches[0].canvas
        if beyond:
            canvas = canvas.with_fills(beyond)
            canvas.mark_complete(self._complete_threshold)
        return [
            RuleBlock(canvas.masked_positions(block.span), self.settings.confidence_threshold, block.complete)
            for block in canvas.active
            if block.masks
        ]

    def lane_segments(self, start: int) -> tuple[Segment, ...]:
        """Decided blocks before the plan's start see nothing after them."""
        return self._segments(self._branches[0].canvas, start)

    def block_views(self) -> tuple[BlockView, ...]:
        return self._canvas.block_views()
