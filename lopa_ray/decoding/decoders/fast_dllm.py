"""Fast-dLLM (arXiv 2505.22618): caches for a bidirectional model, and parallel decoding by confidence.

A block begins with one forward over everything, which caches K/V of what lies before the block (prefix
cache) or around it (dual cache). Then only what is not cached is fed. Under Dream's sampler that first call
decides the block's first position and no other, since later ones do not feed the row that would decide it.
"""

from __future__ import annotations

from lopa_ray.config.decoder_settings import FastDllmSettings
from lopa_ray.decoding.branching import PositionScore
from lopa_ray.decoding.decoders.blockwise import Window
from lopa_ray.decoding.decoders.vanilla import MaskedAnswerSession
from lopa_ray.decoding.unmasking import rank_by_score, select_above_threshold, select_by_factor
from lopa_ray.protocol.plan import Spans


class FastDllmSession(MaskedAnswerSession):
    """One request under Fast-dLLM."""

    settings: FastDllmSettings

    @property
    def _cached_spans(self) -> Spans:
        """Positions whose K/V the block's first call stages for the others."""
        around = {
            "none": (),
            "prefix": (range(self._block.start),),
            "dual": (range(self._block.start), range(self._block.stop, self.max_len)),
        }
        return tuple(span for span in around[self.settings.cache] if span)

    def _window(self) -> Window:
        total = self.max_len
        if self._calls == 0 or self.settings.cache == "none":
            return Window(range(total), ((total, total),), self._block, to_stage=self._cached_spans)
        input_span = self._block if self.settings.cache == "dual" else range(self._block.start, total)
        return Window(input_span, ((input_span.stop, total),), self._block, cached=self._cached_spans)

    def _positions_to_fill(self, scores: dict[int, PositionScore]) -> list[int]:
        settings = self.settings
        first_only = self._uses_dream_sampler and settings.cache != "none"
        if first_only and self._calls == 0:
            return [self._block.start]
        if settings.fill == "schedule":
            return rank_by_score(scores)[: self._scheduled_fill_count(first=1 if first_only else None)]
        if settings.fill == "factor":
            return select_by_factor(scores, settings.factor)
        return select_above_threshold(
            scores, settings.confidence_threshold, self._max_fill_count(len(scores))
        )

    def _max_fill_count(self, masks: int) -> int:
        """The most that this call may fill: what an even pace would have decided by now, less what is decided.

        (The published code hands what a call may not fill on to the next one.)
        """
        if self.settings.steps is None:
            return masks
        by_now = len(self._block) // self._block_steps * (self._calls + 1)
        late = self._calls + 1 >= self._block_steps
        return masks if late else max(1, min(masks, by_now - (len(self._block) - masks)))
