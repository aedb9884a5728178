"""Block diffusion as SDAR decodes (arXiv 2510.06303): a small block at a time, after exact K/V of all before.

K/V enter the cache from a call on decided tokens alone, which decides nothing unless `fuse_store` feeds the next block
along. Fast-dLLM v2 (arXiv 2509.26328) fills a larger block by sub-blocks, from the left. Its logits are shifted, so the
last row of the caching call decides the next block's first token. With its sub-block cache, calls on the whole block,
as long as the sub-block's first position is masked, leave K/V that calls on the sub-block alone read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any, Literal

from pydantic import Field, model_validator

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.block_causal import BlockCausalSession, BlockCausalSettings
from lopa_ray.decoding.history import HistorySettings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import (
    even_fill_count,
    rank_by_score,
    select_above_threshold_or_count,
    select_within_entropy,
)
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.sampling_params import SamplingParams


class BlockDiffusionSettings(BlockCausalSettings, HistorySettings):
    """Block diffusion (SDAR, arXiv 2510.06303; with sub-blocks Fast-dLLM v2, arXiv 2509.26328): blocks one after
    the other, earlier blocks cached exactly."""

    decoder: Literal["block_diffusion"] = "block_diffusion"

    block_size: int = Field(default=4, ge=1)
    """Positions per block, counted from the start of the prompt; what the model was trained with."""

    denoising_steps: int | None = Field(default=None, ge=1)
    """Forward passes per block (per sub-block, where there are any) over which its positions are spread
    evenly. None: one per position."""

    minimal_topk: int | None = Field(default=None, ge=1)
    """LLaDA2.0: a block takes at most max_new_tokens ÷ this passes, so short answers are filled in larger shares.
    None: no such limit."""

    remasking: Literal["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"] = (
        "low_confidence_dynamic"
    )
    """The positions that a pass fills. static: its share, best ranked first. dynamic: all above the threshold
    if they are more than that. sequential: its share from the left. entropy_bounded: the surest, as long as
    their entropies sum up to less than `eb_threshold`."""

    confidence_threshold: float = Field(default=0.85, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled (low_confidence_dynamic)."""

    eb_threshold: float = Field(default=0.35, ge=0.0)
    """Bound on the summed entropy of what a pass fills, in nats (entropy_bounded)."""

    sdar_confidence: float = Field(default=1.0, gt=0.0)
    """Temperature that shapes confidences where tokens are not drawn: probabilities come from softmax(logits ÷ this),
    and the most likely tokens are chosen all the same."""

    fuse_store: bool = False
    """The pass that caches a finished block is also the next block's first pass: the same tokens with one pass fewer
    per block. The published decoder has a pass of its own for it."""

    sub_block_size: int | None = Field(default=None, ge=1)
    """Fast-dLLM v2: a block is filled in parts of this size, one after the other. None: as a whole."""

    sub_block_cache: bool = False
    """Passes on a sub-block feed it alone, and read K/V around it as a pass on the whole block left them. Such a
    pass begins each sub-block; others follow while its first position is masked."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        size = self.sub_block_size
        if size is None and self.sub_block_cache:
            why = "there is nothing to cache around; set sub_block_size or leave sub_block_cache out"
            yield "sub_block_cache", f" without sub_block_size: {why}"
        if size is not None and self.block_size % size:
            yield "sub_block_size", f": got {size}; allowed: a divisor of block_size ({self.block_size})"
        if size is not None and self.fuse_store:
            why = "a pass that caches a block decides the next one's first token before any other"
            yield "fuse_store", f" with sub_block_size: {why}; leave one of them out"
        if self.remasking == "entropy_bounded" and self.ranking != "neg_entropy":
            why = "with remasking entropy_bounded, which ranks by neg_entropy; leave ranking out"
            yield "ranking", f" {self.ranking} {why}"

    @model_validator(mode="before")
    @classmethod
    def _entropy_ranks(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("remasking") == "entropy_bounded":
            return {"ranking": "neg_entropy", **values}
        return values

    @property
    def implied(self) -> frozenset[str]:
        """`ranking`, where the rule has its own. See `StrictModel.implied`."""
        own = {"ranking"} if self.remasking == "entropy_bounded" else frozenset()
        return super().implied | own


class BlockDiffusionSession(BlockCausalSession):
    settings: BlockDiffusionSettings

    def _plan(self, num_branches: int) -> Plan:
        """K/V that other calls read depend on no fork."""
        return super()._plan(1 if self._stages_whole_block else num_branches)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """SDAR applies top_k before top_p, and shapes confidences even where it does not draw."""
        temperature = None if self.settings.temperature > 0 else self.settings.sdar_confidence
        return replace(super().sampling_params, top_k_first=True, confidence_temperature=temperature)

    @property
    def step_limit(self) -> int:
        """Every call decides a position or caches a block."""
        return 2 * self.settings.max_new_tokens + 1

    @property
    def _sub_block(self) -> range:
        """The part of the current block that calls fill: all of it, or the first sub-block that has masks."""
        block, size = self._block, self.settings.sub_block_size
        masked = self._canvas.masked_positions(block)
        if size is None or not masked:
            return block
        start = masked[0] - (masked[0] - block.start) % size
        return range(start, min(start + size, block.stop))

    @property
    def _stages_whole_block(self) -> bool:
        """Whether the coming call leaves K/V of all of the current block for others on its sub-block."""
        if not self.settings.sub_block_cache or self._cached_end < self._block.start:
            return False
        return self._calls == 0 or self._canvas.is_masked(self._sub_block.start)

    def _window(self) -> Window:
        block, sub_block = self._block, self._sub_block
        input_span = range(self._cached_end, block.start)
        if input_span and not self.settings.fuse_store:
            return self._caching_window(input_span)
        if self.settings.sub_block_size is None:
            return super()._window()
        scored = range(max(sub_block.start, len(self.prompt)), sub_block.stop)
        cached = (range(block.start),) if block.start else ()
        if self._stages_whole_block:
            return Window(block, self._segments(block), scored, cached, (block,), True)
        if self.settings.sub_block_cache:
            around = (range(sub_block.start), range(sub_block.stop, block.stop))
            cached_around = tuple(span for span in around if span)
            return Window(sub_block, ((sub_block.stop, block.stop),), scored, cached_around)
        return Window(block, self._segments(block), scored, cached)

    def _caching_window(self, input_span: range) -> Window:
        """The window of the call that caches decided blocks, and fills the next block's first position at most."""
        block, to_stage = self._block, (input_span,)
        scored = range(block.start, block.start)
        if self.settings.sub_block_size and self.vocabulary.shifted and len(self.prompt) <= block.start:
            scored = range(block.start, block.start + 1)
        input_span = range(input_span.start, max(input_span.stop, scored.stop))
        cached = (range(input_span.start),) if input_span.start else ()
        return Window(input_span, self._segments(input_span), scored, cached, to_stage, True)

    @property
    def exact_cache(self) -> bool:
        return not self.settings.sub_block_cache

    def _threshold_and_least(self, call: int) -> tuple[float, int] | None:
        thresholds = {
            "low_confidence_dynamic": self.settings.confidence_threshold,
            "low_confidence_static": inf,
        }
        threshold = thresholds.get(self.settings.remasking)
        return None if threshold is None else (threshold, self._fill_count(call))

    def _end_step(self, branch: Branch) -> None:
        super()._end_step(branch)
        if self.settings.sub_block_size and not self._canvas.masked_positions(branch.scored):
            self._calls = 0  # the next call begins a sub-block

    def _fill_count(self, call: int) -> int:
        """How many positions the schedule lets a call on the current block fill."""
        settings, size = self.settings, self.settings.sub_block_size or self.settings.block_size
        steps = settings.denoising_steps or size
        if settings.minimal_topk is not None:
            steps = max(1, min(steps, settings.max_new_tokens // settings.minimal_topk))
        # After the schedule's calls, one position per call; a block may have fewer masks than a whole one.
        return max(1, even_fill_count(size, steps, call)) if call < steps else 1

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        return self._select(scores, self._fill_count(self._calls))

    def _select(self, scores: Scores, count: int) -> list[int]:
        settings = self.settings
        match settings.remasking:
            case "low_confidence_dynamic":
                return select_above_threshold_or_count(scores, settings.confidence_threshold, count)
            case "low_confidence_static":
                return rank_by_score(scores)[:count]
            case "sequential":
                return sorted(scores)[:count]
            case "entropy_bounded":
                return select_within_entropy(scores, settings.eb_threshold)


BLOCK_DIFFUSION = Decoder(BlockDiffusionSession, BlockDiffusionSettings(max_new_tokens=20, num_branches=3))
