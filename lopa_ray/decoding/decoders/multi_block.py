"""Multi-block diffusion (MultiBD of MBD-LMs): models of block diffusion with several of their blocks in flight.

Blocks are counted from position 0. At most `max_blocks` are in flight: being filled, or decided and not in the cache
yet. A step appends one at most. K/V of a block enter the cache from the step after its last change. With
`editing_threshold` a step also replaces tokens of the blocks in flight; a block is final when a step changes nothing in
it, or after a number of steps, and if all blocks before it are final.

One branch gives the published engine's tokens, except that `max_new_tokens` is exact, the mask token is never chosen,
and the prompt has no step of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.block_canvas import Block, BlockCanvas
from lopa_ray.decoding.branching import Scores, filter_by_constraint
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.block_parallel import BlockParallelSession, BlockParallelSettings
from lopa_ray.decoding.edits import REFUSED_WITH_EDITS, BlockEdits, EditSettings, edits
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Branch


class MultiBlockSettings(BlockParallelSettings, EditSettings):
    """Multi-block diffusion (MultiBD): several blocks of LLaDA2.0, LLaDA2.1 or SDAR in flight."""

    decoder: Literal["multi_block"] = "multi_block"

    max_blocks: int = Field(default=2, ge=1)
    """Most blocks in flight: being filled, or decided and not in the cache yet."""

    decoded_token_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """A block becomes complete (it fills at least one position per step) when the block before it is decided to at
    least this share. Without edits; with them every block is."""

    confidence_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """Masked positions whose probability is strictly above this are filled."""

    editing_threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    """A token of a block in flight is replaced by the most likely one if that has a probability strictly above this
    (LLaDA2.1). None: decided tokens stay (LLaDA2.0, SDAR)."""

    stability_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of the last block's tokens that the last pass found most likely, needed with edits to append a
    block."""

    @property
    def refused(self) -> Mapping[str, str]:
        return super().refused if self.editing_threshold is None else REFUSED_WITH_EDITS

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        edits = self.editing_threshold is not None
        unused = ("decoded_token_threshold",) if edits else ("max_post_steps", "stability_threshold")
        for name in filter(self.is_changed, unused):
            where = "with" if edits else "without"
            why = f"has no use {where} editing_threshold; leave {name} out"
            yield name, f" {getattr(self, name)} {why}"


class MultiBlockSession(BlockParallelSession):
    settings: MultiBlockSettings

    _tiled = True

    def _begin(self) -> None:
        super()._begin()
        if len(self._canvas) > self._canvas.blocks[-1].stop:
            # What is left of the prompt counts for the decision about the next block from the first step on.
            self._canvas.grow(self.settings.block_size, self.max_len)
        self._edited: dict[int, BlockEdits] = {}  # of the active blocks, by their starts; empty without edits
        self._last_start = -1
        """Start of the block that was the last one when the answer had an end: no block is appended after it as long as
        it is in flight, even if an edit has replaced the end."""
        self._marks_last = True  # not once a block was marked with no place after it
        self._lay_draft(self._canvas, range(len(self.prompt), len(self._canvas)))
        self._begin_drafted_block()

    @property
    def _scores_decided(self) -> bool:
        return self.settings.editing_threshold is not None

    @property
    def _complete_threshold(self) -> float:
        return 0.0 if self._scores_decided else super()._complete_threshold

    @property
    def editable(self) -> range:
        active = self._canvas.active if self._scores_decided else []
        return range(max(active[0].start, len(self.prompt)), len(self._canvas)) if active else range(0)

    @property
    def step_limit(self) -> int:
        """Every step decides a position, stores a block, or is one of the last on the first block in flight."""
        settings = self.settings
        blocks = settings.max_new_tokens // settings.block_size + 2
        return settings.max_new_tokens + blocks * (settings.max_post_steps + 2 if self._scores_decided else 1)

    def _has_room(self, canvas: BlockCanvas) -> bool:
        """Whether a block fits: as published, also after an end that marks no last block, while one is in flight."""
        unmarked = len(canvas) < self.max_len and not self._marks_last and bool(_in_flight(canvas))
        return unmarked or super()._has_room(canvas)

    def _begin_drafted_block(self) -> None:
        """Append a block that the draft has tokens of. It is there before a step, since branches differ in fills alone:
        where a constraint leaves tokens of it out, these would differ too."""
        canvas = self._canvas
        if self._is_drafted(canvas) and self._has_room(canvas) and self._earns_block(canvas):
            start = len(canvas)
            canvas.grow(self.settings.block_size, self.max_len)
            self._lay_draft(canvas, range(start, len(canvas)))

    def _is_drafted(self, canvas: BlockCanvas) -> bool:
        """Whether the draft reaches beyond the canvas."""
        return len(canvas) <= len(self.prompt) + max(self.draft, default=-1)

    def _may_grow(self, canvas: BlockCanvas) -> bool:
        return not self._is_drafted(canvas) and self._earns_block(canvas)

    def _earns_block(self, canvas: BlockCanvas) -> bool:
        """Whether no block is in flight, or fewer than allowed are and the last block is stable."""
        in_flight = _in_flight(canvas)
        if not in_flight:
            return True
        last = in_flight[-1].start
        has_place = len(in_flight) < self.settings.max_blocks and last != self._last_start
        stability = self._edited.get(last, BlockEdits()).stability
        return has_place and stability >= self.settings.stability_threshold and super()._may_grow(canvas)

    # Edits

    def _edits(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """The edits of each block in flight, as far as a constraint allows them."""
        decisions: list[Decision] = []
        threshold, most = self.settings.editing_threshold, self.settings.max_post_steps
        if threshold is None:
            return decisions
        before, self._edited = self._edited, {}
        for block in self._canvas.active:
            in_block = {p: score for p, score in scores.items() if block.start <= p < block.stop}
            others, size = list(edits(in_block, self._canvas)), len(in_block) - block.masks
            last = before.get(block.start, BlockEdits())
            post_steps = last.post_steps + (not block.masks)
            replaced = [decision for decision in others if decision.probability > threshold]
            made = filter_by_constraint(constraint_state, replaced, scores) if post_steps <= most else []
            self._edited[block.start] = BlockEdits(
                steps=last.steps + 1,
                post_steps=post_steps,
                changed=bool(block.masks or made),
                stability=(size - len(others)) / size if size else 1.0,
            )
            decisions += made
        return decisions

    def _may_be_edited(self, left: BlockEdits) -> bool:
        """Whether a block without masks gets a further step."""
        most = self.settings.max_post_steps
        is_early = left.post_steps <= most and left.steps < self.settings.block_size + most
        return left.changed and is_early

    def _end_step(self, branch: Branch) -> None:
        self._canvas.mark_cached()
        self._canvas.mark_to_cache({at for at, left in self._edited.items() if self._may_be_edited(left)})
        self._begin_drafted_block()
        in_flight = _in_flight(self._canvas)
        if self._marks_last and in_flight and self.has_ended(self.generated):
            self._last_start = in_flight[-1].start
            self._marks_last = len(in_flight) < self.settings.max_blocks


def _in_flight(canvas: BlockCanvas) -> list[Block]:
    """Blocks of the answer that are being filled, or wait to be cached."""
    return [block for block in canvas.blocks[1:] if block.state != "in_cache"]


MULTI_BLOCK = Decoder(
    MultiBlockSession, MultiBlockSettings(**SHORT, block_size=4, max_blocks=3, num_branches=3)
)
