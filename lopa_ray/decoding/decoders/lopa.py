"""LoPA (arXiv 2512.16229, section 3 and algorithm 1) on D2F's block-parallel canvas.

With one branch this is D2F's decoder (arXiv 2508.09192). With blocks counted from position 0 it decodes models of block
diffusion (SDAR, LLaDA2) with several of their blocks in flight. Semantics follow the published
code, quirks that decide tokens included, with these deviations: two identical branches are
evaluated once, the mask token is never chosen, the last block is cut so that
`max_new_tokens` is exact, and a request may end at the first EOS (`stop_at_eos`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lopa_ray.constraints.constraint import TokenBitmasks
from lopa_ray.decoding.block_canvas import Block, BlockCanvas, BlockState
from lopa_ray.decoding.branching import Fork, PositionScore
from lopa_ray.decoding.filling_rules import select_by_block
from lopa_ray.decoding.filling_session import FillingSession, PlannedBranch, RuleBlock
from lopa_ray.decoding.lookahead_settings import LookaheadSettings, NumBranches
from lopa_ray.decoding.settled import SettledSettings
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.outcome import BlockView
from lopa_ray.protocol.plan import Branch, Fill, Plan, Segment
from lopa_ray.protocol.sampling_params import SamplingParams


class BlockSettings(SettledSettings):
    """Block-parallel decoding: blocks are appended before the ones in front are done."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`."""

    block_add_threshold: float = Field(default=0.1, ge=0.0, le=1.0)
    """A block is appended when the last one is decided to at least this share."""

    decoded_token_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """A block becomes complete (it fills at least one position per step) when the block
    before it is decided to at least this share."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled."""

    window_attention: Literal["full", "block_causal"] = "full"
    """The positions that a position of the active window sees: all of the window, or its own and earlier blocks."""

    block_origin: Literal["answer", "start"] = "answer"
    """Where blocks are counted from. answer: the prompt is one block, and the first behind it begins with the answer
    (D2F). start: position 0, for models that were trained so (SDAR, LLaDA2): the prompt is blocks too, and what is
    left of it lies in the first block of the answer. Needs window_attention block_causal."""

    commit_protocol: Literal["two_phase", "single_phase"] = "two_phase"
    """two_phase: the winner's K/V is broadcast (needed with full attention, where K/V differ by
    branch). single_phase: each worker commits its own (block-causal only). Default: the one
    that the attention implies."""

    @model_validator(mode="before")
    @classmethod
    def _protocol_follows_attention(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("commit_protocol") is None:
            causal = values.get("window_attention") == "block_causal"
            values = {**values, "commit_protocol": "single_phase" if causal else "two_phase"}
        return values

    @model_validator(mode="after")
    def _origin_needs_blocks(self) -> Self:
        if self.block_origin == "start" and self.window_attention == "full":
            raise SettingsError(
                "block_origin start with window_attention full, which has no blocks; use block_causal or leave "
                "block_origin out",
                setting="block_origin",
            )
        return self

    @model_validator(mode="after")
    def _protocol_allows_attention(self) -> Self:
        if self.window_attention == "full" and self.commit_protocol == "single_phase":
            raise SettingsError(
                "commit_protocol single_phase needs window_attention block_causal: under full attention the "
                "K/V of finished blocks differ by branch; use two_phase or leave commit_protocol out",
                setting="commit_protocol",
            )
        return self

    @property
    def implied(self) -> frozenset[str]:
        """`commit_protocol`, unless it is another than that of the attention. See `StrictModel.implied`."""
        follows = (self.commit_protocol == "single_phase") == (self.window_attention == "block_causal")
        return frozenset({"commit_protocol"} if follows else ())


class D2FSettings(BlockSettings):
    """Discrete diffusion forcing (D2F): block-parallel decoding of a single branch."""

    decoder: Literal["d2f"] = "d2f"


class LopaSettings(BlockSettings, LookaheadSettings):
    """Lookahead parallel decoding (LoPA, arXiv 2512.16229) on top of D2F."""

    decoder: Literal["lopa"] = "lopa"

    num_branches: NumBranches = 4
    """Branches per step, the anchor included; 1 is plain decoding. auto: as many as have paid off in this
    request's own steps, max_branches at most."""


class LopaSession(FillingSession[BlockCanvas]):
    """One LoPA request: an anchor canvas, and per step the forks made from the last winner."""

    settings: BlockSettings

    def _begin(self) -> None:
        super()._begin()
        self._tiled = self.settings.block_origin == "start"
        remainder = len(self.prompt) % self.settings.block_size if self._tiled else 0
        self._anchor = BlockCanvas(self.prompt, self.vocabulary.mask_token_id, remainder)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Models of block diffusion are sampled as SDAR's decoder samples them."""
        return replace(super().sampling_params, top_k_first=self._tiled)

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""
        return self._anchor.generated

    @property
    def exhausted(self) -> bool:
        """Nothing is masked, nothing is active, and no block may be added."""
        anchor = self._anchor
        return not anchor.masks and not anchor.active and not self._can_grow(anchor)

    def _can_grow(self, canvas: BlockCanvas) -> bool:
        return len(canvas) < self.max_len and not self.has_ended(canvas.generated)

    # Planning

    def _planned_branch(self, fork: Fork) -> PlannedBranch[BlockCanvas]:
        """A branch grows on its own: a fork may earn its next block a step before the anchor.

        Where blocks tile, a fork that decides all there is does not: like such a fork in other decoders of these models
        it has nothing left to be unsure of, and is not compared by the masks of its next block.
        """
        settings = self.settings
        canvas = self._anchor.with_fills(fork.fills)
        is_decided = self._tiled and bool(fork.decisions) and not canvas.masks
        if not is_decided and self._can_grow(canvas):
            canvas.grow(settings.block_add_threshold, settings.block_size, self.max_len)
        canvas.mark_complete(settings.decoded_token_threshold)
        return PlannedBranch(fork, canvas, self._constraint_state(canvas.generated))

    def _plan(self, num_branches: int) -> Plan:
        branches = self._branches = [
            self._planned_branch(fork) for fork in self._lookahead.next_branches(num_branches)
        ]

        # The anchor alone decides which blocks are cached, so these are the same on every branch.
        to_cache = [block for block in self._anchor.blocks if block.state is BlockState.TO_CACHE]
        cacheable_end = self._anchor.cacheable_end
        start = to_cache[0].start if to_cache else cacheable_end
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
                    scored=(scored := range(cacheable_end, len(branch.canvas))),
                    fills=branch.fork.fills,
                    to_stage=(range(start, cacheable_end),) if to_cache else (),
                    bitmask_ids=bitmasks.add(branch.constraint_state, scored),
                    draw_key=self.draw_key,
                )
                for branch in branches
            ),
            cached=(range(start),) if start else (),
            stage_shared=self.settings.commit_protocol == "single_phase",
            commit=self._commit,
            sampling_params=self.sampling_params,
            token_bitmasks=bitmasks.unique,
        )

    def _segments(self, canvas: BlockCanvas, start: int) -> tuple[Segment, ...]:
        if self.settings.window_attention == "full":
            return ((len(canvas), len(canvas)),)
        stops = (stop for block in canvas.blocks if block.stop > start for stop in self._tile_stops(block))
        return tuple((stop, stop) for stop in stops)

    def _tile_stops(self, block: Block) -> list[int]:
        """Ends of the tiles whose positions see nothing behind them: the block's, or those of a prompt's blocks."""
        if not self._tiled:
            return [block.stop]
        size = self.settings.block_size
        return [*range(block.start + size, block.stop, size), block.stop]

    # Deciding

    def _adopt(self, canvas: BlockCanvas) -> None:
        self._anchor = canvas

    def _filling_rule(self, scores: dict[int, PositionScore]) -> list[int]:
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

    @property
    def exact_cache(self) -> bool:
        """Under block-causal attention."""
        return self.settings.window_attention == "block_causal"

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        canvas = self._branches[0].canvas
        first, last = canvas.active[0], canvas.blocks[-1]
        # A block that the planned step appends is part of the answer from the next step on.
        if len(canvas) > len(self._anchor):
            return False
        if first.masks <= sum(position < first.stop for position, _ in fills):
            return False
        masks = last.masks - sum(position >= last.start for position, _ in fills)
        size = last.stop - last.start
        grows = size - masks >= self.settings.block_add_threshold * size and self._can_grow(canvas)
        return not grows

    def threshold_blocks(self) -> list[RuleBlock]:
        """The active blocks."""
        canvas = self._branches[0].canvas
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
