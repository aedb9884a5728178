"""Block diffusion as SDAR decodes (arXiv 2510.06303): a small block at a time, after exact K/V of all before.

Attention is block-causal with blocks counted from position 0, so the prompt's tail shares the first block
with masks. K/V enter the cache from a call on decided tokens alone, which by itself decides nothing, unless
`fuse_store` feeds the next block behind it.
"""

from __future__ import annotations

from dataclasses import replace

from lopa_ray.branching import Score
from lopa_ray.decoders.blockwise import BlockwiseSession, Window
from lopa_ray.filling import above_or_share, even_share, ranked, within_entropy
from lopa_ray.plan import Plan, Sampling, Segment
from lopa_ray.settings import BlockDiffusionSettings


class BlockDiffusionSession(BlockwiseSession):
    """One request under block diffusion."""

    settings: BlockDiffusionSettings

    def _begin(self) -> None:
        super()._begin()
        self._cached = 0
        """End of what is in the cache, or staged for it."""

    @property
    def sampling(self) -> Sampling:
        """SDAR applies top_k before top_p, and shapes confidences even where it does not draw."""
        shape = None if self.settings.temperature > 0 else self.settings.sdar_confidence
        return replace(super().sampling, top_k_first=True, confidence_temperature=shape)

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt, up to the end of the current block."""
        return self._ids[len(self.prompt) : self._block.stop]

    @property
    def exhausted(self) -> bool:
        """The current block is decided, and it is the last one: there is no room, or the answer has ended."""
        if self._masked(self._block):
            return False
        return self._block.stop == self.max_len or self.ended(self.generated)

    @property
    def step_limit(self) -> int:
        """Every call decides a position or caches a block."""
        return 2 * self.settings.max_new_tokens + 1

    def _block_after(self, position: int) -> range:
        size = self.settings.block_size
        start = position - position % size
        return range(start, min(start + size, self.max_len))

    def _window(self) -> Window:
        block, fed = self._block, range(self._cached, self._block.start)
        cached = (range(self._cached),) if self._cached else ()
        if not fed:
            return Window(block, self._segments(block), self._open, cached)
        scored = range(fed.stop, fed.stop)
        if self.settings.fuse_store:
            fed, scored = range(fed.start, block.stop), self._open
        return Window(fed, self._segments(fed), scored, cached, (range(fed.start, block.start),), True)

    def _segments(self, span: range) -> tuple[Segment, ...]:
        stops: list[int] = []
        while not stops or stops[-1] < span.stop:
            stops.append(self._block_after(stops[-1] if stops else span.start).stop)
        return tuple((stop, stop) for stop in stops)

    def _turn(self, plan: Plan) -> None:
        if plan.keep:
            self._cached = plan.keep[-1].stop
        if not self.exhausted:
            super()._turn(plan)

    def _chosen(self, scores: dict[int, Score]) -> list[int]:
        settings, size = self.settings, self.settings.block_size
        steps = settings.denoising_steps or size
        # With fewer masks than a whole block has, or none left to fill by the schedule, one goes on.
        share = max(1, even_share(size, steps, self._calls)) if self._calls < steps else 1
        match settings.remasking:
            case "low_confidence_dynamic":
                return above_or_share(scores, settings.confidence_threshold, share)
            case "low_confidence_static":
                return ranked(scores)[:share]
            case "sequential":
                return sorted(scores)[:share]
            case "entropy_bounded":
                return within_entropy(scores, settings.eb_threshold)
