"""Block-parallel decoders, which append blocks before earlier ones are done: what they share. They differ in when the
canvas grows (`_may_grow`), in what a position sees and in where blocks begin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from pydantic import Field

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.constraints.token_bitmasks import TokenBitmasks
from lopa_ray.decoding.block_canvas import BlockCanvas, BlockState
from lopa_ray.decoding.branching import Fork, Scores
from lopa_ray.decoding.filling_rules import select_by_block
from lopa_ray.decoding.filling_session import FillingSession, PlannedBranch, RuleBlock
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Branch, Fill, Plan, Segment
from lopa_ray.protocol.sampling_params import SamplingParams


class BlockParallelSettings(GenerationSettings):
    """The settings that these decoders share."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`. Where blocks are counted from position 0,
    what the model was trained with."""

    block_add_threshold: float = Field(default=0.1, ge=0.0, le=1.0)
    """A block is appended when the last one is decided to at least this share."""

    decoded_token_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """A block becomes complete (it fills at least one position per step) when the block
    before it is decided to at least this share."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled."""

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention("blocks", self.block_size)


class BlockParallelSession(FillingSession[BlockCanvas]):
    """One request: an anchor canvas, and per step the forks made from the last winner."""

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

    @property
    def _scores_decided(self) -> bool:
        return False

    def _begin(self) -> None:
        super()._begin()
        first, size, beginning = len(self.prompt), self.settings.block_size, self.given.beginning
        remainder = (len(beginning) + (first if self._tiled else 0)) % size
        self._anchor = BlockCanvas(self.prompt, self.vocabulary.mask_token_id, remainder, beginning)
        while len(self._anchor) < first + self.given.end:
            self._anchor.grow(size, self.max_len)
        given = self.given.tokens.items()
        self._set_tokens((first + at, token) for at, token in given if at >= len(beginning))

    def _view_stop(self, position: int) -> int:
        return next(block.stop for block in self._anchor.blocks if position < block.stop)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Models of block diffusion are sampled as SDAR's decoder samples them."""
        return replace(super().sampling_params, top_k_first=self._tiled)

    @property
    def generated(self) -> list[int]:
        return self._anchor.generated

    @property
    def exhausted(self) -> bool:
        anchor = self._anchor
        return not anchor.masks and not anchor.active and not self._has_room(anchor)

    def _has_room(self, canvas: BlockCanvas) -> bool:
        """Whether there is a next block, at some step: there are positions for it, and the answer has no end."""
        return len(canvas) < self.max_len and not self.has_ended(canvas.generated)

    def _may_grow(self, canvas: BlockCanvas) -> bool:
        """Whether the coming step appends a block, if there is one: the last one is decided far enough."""
        return canvas.blocks[-1].decided_fraction >= self.settings.block_add_threshold

    @property
    def _complete_threshold(self) -> float:
        return self.settings.decoded_token_threshold

    # Planning

    def _planned_branch(self, fork: Fork) -> PlannedBranch[BlockCanvas]:
        """A branch grows on its own: a fork may earn its next block a step before the anchor. Where blocks tile, a fork
        that decides all there is does not: it has nothing left to be unsure of, as in other decoders of these models.
        """
        canvas = self._anchor.with_fills(fork.fills)
        is_decided = self._tiled and bool(fork.decisions) and not canvas.masks
        if not is_decided and self._has_room(canvas) and self._may_grow(canvas):
            canvas.grow(self.settings.block_size, self.max_len)
        canvas.mark_complete(self._complete_threshold)
        return PlannedBranch(fork, canvas, self._constraint_state(canvas.generated))

    def _plan(self, num_branches: int) -> Plan:
        forks = self._lookahead.next_branches(num_branches)
        branches = self._branches = [self._planned_branch(fork) for fork in forks]
        # The anchor alone decides which blocks are cached, so these are the same on every branch.
        to_cache = [block for block in self._anchor.blocks if block.state is BlockState.TO_CACHE]
        cacheable_end = self._anchor.cacheable_end
        start = to_cache[0].start if to_cache else cacheable_end
        # Tokens of the prompt in the answer's first block are not scored, and so not edited.
        first_scored = max(cacheable_end, len(self.prompt)) if self._scores_decided else cacheable_end
        longest = max((branch.canvas for branch in branches), key=len)
        bitmasks = TokenBitmasks()
        return Plan(
            step=self.steps + 1,
            start=start,
            canvas=tuple(self._anchor.ids[start:])
            + (self.vocabulary.mask_token_id,) * (len(longest) - len(self._anchor)),
            branches=tuple(
                Branch(
                    segments=self._segments(branch.canvas, start),
                    scored=(scored := range(first_scored, len(branch.canvas))),
                    fills=branch.fork.fills,
                    to_stage=(range(start, cacheable_end),) if to_cache else (),
                    bitmask_ids=bitmasks.add(
                        branch.constraint_state, scored, scores_decided=self._scores_decided
                    ),
                    draw_key=self.draw_key,
                )
                for branch in branches
            ),
            cached=(range(start),) if start else (),
            stage_shared=self._shares_staged,
            logit_changes=self.step_logit_changes,
            commit=self._commit,
            sampling_params=self.sampling_params,
            token_bitmasks=bitmasks.unique,
            scores_decided=self._scores_decided,
        )

    def _segments(self, canvas: BlockCanvas, start: int) -> tuple[Segment, ...]:
        """What the rows from `start` on see: their own block and those before it."""
        blocks = (block for block in canvas.blocks if block.stop > start)
        if not self._tiled:
            return tuple((block.stop, block.stop) for block in blocks)
        size = self.settings.block_size  # what the prompt's block has of blocks of this size, too
        tiles = ((*range(block.start + size, block.stop, size), block.stop) for block in blocks)
        return tuple((stop, stop) for stops in tiles for stop in stops)

    # Deciding

    def _adopt(self, canvas: BlockCanvas) -> None:
        self._anchor = canvas

    def _filling_rule(self, scores: Scores) -> list[int]:
        return select_by_block(self._anchor, scores, self.settings.confidence_threshold)

    def _set_tokens(self, fills: Iterable[Fill]) -> None:
        for position, token in fills:
            self._anchor.fill(position, token)

    def _copied(self, canvas: BlockCanvas) -> BlockCanvas:
        return canvas.copy()

    def _is_masked(self, position: int) -> bool:
        return self._anchor.ids[position] == self.vocabulary.mask_token_id

    @property
    def _fills_last_mask(self) -> bool:
        """Where blocks tile, as in other decoders of these models."""
        return self._tiled and super()._fills_last_mask

    def _end_step(self, branch: Branch) -> None:
        self._anchor.mark_cached()
        self._anchor.mark_to_cache()

    # Drafts

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        canvas = self._branches[0].canvas
        first = canvas.active[0]
        # A block that the planned step appends is part of the answer from the next step on.
        is_new = len(canvas) > len(self._anchor)
        if is_new or first.masks <= sum(position < first.stop for position, _ in fills):
            return False
        return not (self._has_room(canvas) and self._may_grow(canvas.with_fills(tuple(fills))))

    def threshold_blocks(self, beyond: Collection[Fill] = ()) -> list[RuleBlock]:
        canvas = self._branches[0].canvas
        if beyond:
            canvas = canvas.with_fills(tuple(beyond))
            canvas.mark_complete(self._complete_threshold)
        return [
            RuleBlock(canvas.masked_positions(block), block.complete)
            for block in canvas.active
            if block.masks
        ]

    def lane_segments(self, start: int) -> tuple[Segment, ...]:
        """Decided blocks before the plan's start see nothing behind them."""
        return self._segments(self._branches[0].canvas, start)

    def block_views(self) -> tuple[BlockView, ...]:
        return self._anchor.block_views()
