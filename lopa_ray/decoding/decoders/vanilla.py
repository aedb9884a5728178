"""The samplers that Dream (`diffusion_generate`, arXiv 2508.15487) and LLaDA (`generate`, arXiv 2502.09992) were
published with: every call feeds everything, a schedule says how many positions it fills. Random choices are
reproducible here. Dream's ranks by logits in half precision: its recorded decodes agree with that, and some of them not
with fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import (
    dream_fill_counts,
    dream_fill_fractions,
    even_fill_count,
    rank_by_score,
    sample_by_score,
    sample_independently,
)
from lopa_ray.protocol.sampling_params import SamplingParams

MAX_STEPS = 2**16  # longest schedule of an answer: it is kept in memory as a whole


class MaskedAnswerSettings(LookaheadSettings):
    """The whole answer is masked from the start, and decided block by block."""

    block_size: int | None = Field(default=None, ge=1)
    """Positions per block (semi-autoregressive decoding); the last block is cut to fit `max_new_tokens`.
    None: the whole answer is one block."""

    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Forward passes for the whole answer, spread evenly over its blocks. None: one per position. fast_dllm needs them
    with fill schedule; with fill threshold it fills no faster than an even pace of that many passes would, and None
    sets no such limit."""

    eps: float = Field(default=1e-3, gt=0.0, lt=1.0)
    """Noise level at which Dream's schedule ends."""

    @property
    def num_blocks(self) -> int:
        return max(1, -(-self.max_new_tokens // (self.block_size or max(1, self.max_new_tokens))))

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.steps is not None and self.steps % self.num_blocks:
            allowed = f"a multiple of the number of blocks ({self.num_blocks})"
            yield "steps", f": got {self.steps}; allowed: {allowed}"


class MaskedAnswerSession(BlockwiseSession):
    settings: MaskedAnswerSettings

    @property
    def _uses_dream_sampler(self) -> bool:
        """Whether it follows Dream's sampler, as models with shifted logits do, and not LLaDA's."""
        return self.vocabulary.shifted

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """LLaDA computes confidences in fp64 and at temperature 1, at whichever temperature tokens are drawn."""
        params = super().sampling_params
        if self._uses_dream_sampler:
            return params
        return replace(params, precision="float64", confidence_temperature=1.0)

    @property
    def step_limit(self) -> int:
        """A schedule may plan calls that decide nothing; each of the others decides a position."""
        return self.settings.max_new_tokens + (self.settings.steps or 0)

    def _block_at(self, position: int) -> range:
        size = self.settings.block_size or max(1, self.settings.max_new_tokens)
        start = position - (position - len(self.prompt)) % size
        return range(start, min(start + size, self.max_len))

    def _window(self) -> Window:
        total = self.max_len
        return Window(range(total), ((total, total),), self._block)

    @property
    def _block_steps(self) -> int:
        steps = self.settings.steps
        return len(self._open_positions) if steps is None else steps // self.settings.num_blocks

    def _scheduled_fill_count(self, call: int, first: int | None = None) -> int:
        """How many positions the schedule lets a call fill; `first`: how many the block's first call fills. Counted
        from a block as it began, whatever lookahead adds; calls beyond the schedule fill one each."""
        masks, steps = len(self._open_positions), self._block_steps
        if call >= steps:
            return 1
        if self._uses_dream_sampler:
            return dream_fill_counts(masks, steps, self.settings.eps, first)[call]
        return even_fill_count(masks, steps, call)


class VanillaSettings(MaskedAnswerSettings):
    """The samplers that Dream and LLaDA were published with: a schedule, and no cache."""

    decoder: Literal["vanilla"] = "vanilla"

    remasking: Literal["low_confidence", "random", "origin"] = "low_confidence"
    """The positions that a call fills: the best ranked; any, as many; or each with the schedule's chance. Dream's
    maskgit_plus, topk_margin and entropy are low_confidence with ranking probability, margin and neg_entropy."""

    alg_temp: float = Field(default=0.0, ge=0.0)
    """Above 0 the best ranked are drawn, from the softmax of score ÷ alg_temp."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.alg_temp > 0 and self.remasking != "low_confidence":
            why = "nothing is ranked there; leave alg_temp out or use remasking low_confidence"
            yield "alg_temp", f" {self.alg_temp} with remasking {self.remasking}: {why}"


class VanillaSession(MaskedAnswerSession):
    settings: VanillaSettings

    may_decide_nothing = True

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Dream's ranks by logits in half precision."""
        sampling_params = super().sampling_params
        return replace(sampling_params, precision="float16") if self._uses_dream_sampler else sampling_params

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        settings, step = self.settings, self.rule_steps + 1
        if settings.remasking == "origin":
            fractions = dream_fill_fractions(self._block_steps, settings.eps)
            probability = float(fractions[self._calls]) if self._calls < len(fractions) else 1.0
            return sample_independently(scores, probability, settings.seed, step)
        count = self._scheduled_fill_count(self._calls)
        temperature = float("inf") if settings.remasking == "random" else settings.alg_temp
        if temperature > 0:
            return sample_by_score(scores, count, temperature, settings.seed, step)
        return rank_by_score(scores)[:count]

    def _threshold_and_least(self, call: int) -> tuple[float, int] | None:
        ranks = self.settings.remasking == "low_confidence" and not self.settings.alg_temp
        return (inf, self._scheduled_fill_count(call)) if ranks else None


VANILLA = Decoder(VanillaSession, VanillaSettings(max_new_tokens=16, block_size=8, steps=8, num_branches=3))
