"""Decoders of block-causal models: blocks are counted from position 0, and see themselves and earlier blocks, so K/V of
a decided block are exact whenever they are computed. The prompt's tail shares the first block with masks."""

from __future__ import annotations

from pydantic import Field

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.protocol.plan import Branch, Segment


class BlockCausalSettings(LookaheadSettings):
    """The settings that these decoders share."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block, counted from the start of the prompt; what the model was trained with. nemotron counts them
    from the end of the prompt; with 1 it decodes autoregressively."""

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention("blocks", self.block_size)


class BlockCausalSession(BlockwiseSession):
    settings: BlockCausalSettings

    @property
    def exact_cache(self) -> bool:
        return True

    def _begin(self) -> None:
        super()._begin()
        self._cached_end = 0  # end of what is in the cache, or staged for it

    def _answer(self, canvas: Canvas) -> list[int]:
        return canvas.ids[canvas.prompt_len : self._block.stop]

    @property
    def exhausted(self) -> bool:
        return self._block_is_final and (self._block.stop == self.max_len or self.has_ended(self.generated))

    def _block_at(self, position: int) -> range:
        size = self.settings.block_size
        start = position - position % size
        return range(start, min(start + size, self.max_len))

    def _window(self) -> Window:
        start, block = self._cached_end, self._block
        span, cached = range(start, block.stop), (range(start),) if start else ()
        to_stage = (range(start, block.start),) if start < block.start else ()
        return Window(span, self._segments(span), self._block_answer_span, cached, to_stage, bool(to_stage))

    def _view_stop(self, position: int) -> int:
        return self._block_at(position).stop

    def _segments(self, span: range) -> tuple[Segment, ...]:
        first = self._block_at(span.start).stop
        stops = (*range(first, span.stop, self.settings.block_size), span.stop)
        return tuple((stop, stop) for stop in stops)

    def lane_segments(self, start: int) -> tuple[Segment, ...]:
        plan = self.plan()
        before = self._segments(range(start, plan.start)) if start < plan.start else ()
        return before + plan.branches[0].segments

    def _end_step(self, branch: Branch) -> None:
        if branch.to_stage and branch.to_stage[-1].stop <= self._block.start:
            self._cached_end = branch.to_stage[-1].stop
        if not self.exhausted:
            super()._end_step(branch)
