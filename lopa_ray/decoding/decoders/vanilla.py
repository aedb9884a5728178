"""The samplers that Dream and LLaDA were published with: every call feeds everything, a schedule says how
many positions it fills.

Dream's `diffusion_generate` (arXiv 2508.15487) and LLaDA's `generate` (arXiv 2502.09992), by `sampler`.
Random choices are reproducible here, and so are others than torch's generator would make. Dream's ranks by
logits in half precision: its recorded decodes agree with that, and some of them not with fp32.
"""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.config.decoder_settings import MaskedAnswerSettings, VanillaSettings
from lopa_ray.decoding.branching import PositionScore
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession, Window
from lopa_ray.decoding.unmasking import (
    dream_fill_counts,
    dream_fill_fractions,
    even_fill_count,
    rank_by_score,
    sample_by_score,
    sample_independently,
)
from lopa_ray.protocol.sampling_params import SamplingParams


class MaskedAnswerSession(BlockwiseSession):
    """One request whose whole answer is masked from the start, and the schedule of its blocks."""

    settings: MaskedAnswerSettings

    @property
    def _uses_dream_sampler(self) -> bool:
        """Whether it follows Dream's sampler, and not LLaDA's."""
        sampler = self.settings.sampler
        return self.vocabulary.shifted if sampler == "auto" else sampler == "dream"

    @property
    def sampling_params(self) -> SamplingParams:
        """LLaDA computes confidences in fp64 and at temperature 1, at whichever temperature tokens are drawn."""
        sampling_params = super().sampling_params
        return (
            sampling_params
            if self._uses_dream_sampler
            else replace(sampling_params, precision="float64", confidence_temperature=1.0)
        )

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
        """Calls that the schedule has for a block."""
        steps = self.settings.steps
        return len(self._block) if steps is None else steps // self.settings.num_blocks

    def _scheduled_fill_count(self, first: int | None = None) -> int:
        """How many positions the schedule lets this call fill; `first`: how many the block's first call fills.

        Counted from a whole block: what lookahead adds brings the end nearer, and changes the count of no call.
        Where a constraint held fills back, the calls beyond the schedule fill one each.
        """
        masks, steps, call = len(self._block), self._block_steps, self._calls
        if call >= steps:
            return 1
        if self._uses_dream_sampler:
            return dream_fill_counts(masks, steps, self.settings.eps, first)[call]
        return even_fill_count(masks, steps, call)


class VanillaSession(MaskedAnswerSession):
    """One request under a published sampler."""

    settings: VanillaSettings

    @property
    def sampling_params(self) -> SamplingParams:
        """Dream's ranks by logits in half precision."""
        sampling_params = super().sampling_params
        return replace(sampling_params, precision="float16") if self._uses_dream_sampler else sampling_params

    def _positions_to_fill(self, scores: dict[int, PositionScore]) -> list[int]:
        settings, step = self.settings, self.steps
        if settings.remasking == "origin":
            fractions = dream_fill_fractions(self._block_steps, settings.eps)
            probability = float(fractions[self._calls]) if self._calls < len(fractions) else 1.0
            return sample_independently(scores, probability, settings.seed, step)
        if settings.remasking == "random":
            return sample_by_score(scores, self._scheduled_fill_count(), float("inf"), settings.seed, step)
        if settings.alg_temp > 0:
            return sample_by_score(
                scores, self._scheduled_fill_count(), settings.alg_temp, settings.seed, step
            )
        return rank_by_score(scores)[: self._scheduled_fill_count()]
