"""Fast-dLLM (arXiv 2505.22618): caches for a bidirectional model, and parallel decoding by confidence.

A block begins with one forward over everything, which caches K/V before the block (prefix cache) or around it (dual
cache). Under Dream's sampler that call decides the block's first position alone, since later calls do not feed the row
that would decide it. LocalLeap (arXiv 2510.07081) has a lower threshold near sure positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.vanilla import MaskedAnswerSession, MaskedAnswerSettings
from lopa_ray.decoding.history import HistorySettings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import (
    rank_by_score,
    select_above_threshold,
    select_by_factor,
    select_near_anchors,
)
from lopa_ray.protocol.plan import Spans


class FastDllmSettings(MaskedAnswerSettings, HistorySettings):
    """Fast-dLLM (arXiv 2505.22618): parallel decoding by confidence, and approximate K/V caches."""

    decoder: Literal["fast_dllm"] = "fast_dllm"

    block_size: int | None = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`. None: the answer is one block."""

    cache: Literal["none", "prefix", "dual"] = "dual"
    """K/V that a block's first call leaves for its other calls: none, of everything before the block,
    or of everything around it."""

    fill: Literal["threshold", "factor", "schedule"] = "threshold"
    """Fill by confidence, by confidence and number, or a fixed number of positions per call."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions with at least this probability are filled, and always the best one (fill: threshold)."""

    relaxed_threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    """LocalLeap (arXiv 2510.07081): the threshold near positions that have `confidence_threshold` (fill: threshold).
    The paper's runs have 0.75 with a `confidence_threshold` of 0.9. None: the same everywhere."""

    anchor_radius: int = Field(default=4, ge=0)
    """How many positions on either side are near (`relaxed_threshold`)."""

    factor: float = Field(default=1.0, gt=0.0)
    """Fills the n best as long as the n-th has at least probability 1 - factor ÷ (n + 1) (fill: factor)."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        fill, steps = self.fill, self.steps
        if (fill == "schedule" and steps is None) or (fill == "factor" and steps is not None):
            why = "give steps with fill: schedule, and never with fill: factor"
            yield "fill", f" {fill!r} with steps {steps}; {why}"
        if fill != "threshold" and self.relaxed_threshold is not None:
            why = f"with fill {fill!r}: it relaxes fill: threshold; leave one out"
            yield "relaxed_threshold", f" {self.relaxed_threshold} {why}"
        if fill == "schedule" and self.cache != "none" and (steps or 0) < 2 * self.num_blocks:
            allowed = f"a multiple of the number of blocks ({self.num_blocks}), at least twice as many"
            yield "steps", f": got {steps}; allowed: {allowed}"


class FastDllmSession(MaskedAnswerSession):
    settings: FastDllmSettings

    @property
    def may_decide_nothing(self) -> bool:
        return self.settings.fill == "schedule"

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

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        s, first_only = self.settings, self._decides_first_alone
        if first_only and self._calls == 0:
            return [self._block.start]
        if s.fill == "schedule":
            return rank_by_score(scores)[: self._fill_count(self._calls)]
        if s.fill == "factor":
            return select_by_factor(scores, s.factor)
        threshold, max_count = s.confidence_threshold, self._max_fill_count(len(scores))
        if s.relaxed_threshold is None:
            return select_above_threshold(scores, threshold, max_count)
        return select_near_anchors(scores, threshold, s.relaxed_threshold, s.anchor_radius, max_count)

    @property
    def _decides_first_alone(self) -> bool:
        """Whether the first call on the block decides its first position and no other. Not if that is decided."""
        is_open = self._block.start in self._open_positions
        return self._uses_dream_sampler and self.settings.cache != "none" and is_open

    def _fill_count(self, call: int) -> int:
        return self._scheduled_fill_count(call, first=1 if self._decides_first_alone else None)

    def _threshold_and_least(self, call: int) -> tuple[float, int] | None:
        s = self.settings
        if s.fill == "factor" or s.relaxed_threshold is not None or (call == 0 and self._decides_first_alone):
            return None
        return (inf, self._fill_count(call)) if s.fill == "schedule" else (s.confidence_threshold, 1)

    def _max_fill_count(self, masks: int) -> int:
        """The maximum that this call may fill: what an even pace would have decided by now, less what is decided."""
        if self.settings.steps is None:
            return masks
        positions = len(self._open_positions)
        by_now = positions // self._block_steps * (self._calls + 1)
        late = self._calls + 1 >= self._block_steps
        return masks if late else max(1, min(masks, by_now - (positions - masks)))


FAST_DLLM = Decoder(
    FastDllmSession,
    FastDllmSettings(max_new_tokens=20, block_size=8, confidence_threshold=0.6, num_branches=3),
)
