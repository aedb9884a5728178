"""KLASS (arXiv 2511.05664): fills positions that are probable and whose distributions have hardly moved.

A call compares the distributions of all masked positions, also of later blocks, with those in the state before. Where
none is ready, a schedule fills the most probable ones of the block, under Dream's sampler one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from lopa_ray.decoding.branching import Fork, Scores
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.vanilla import MaskedAnswerSession, MaskedAnswerSettings
from lopa_ray.decoding.history import History
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import rank_by_score
from lopa_ray.protocol.plan import Fill, Plan
from lopa_ray.protocol.scoring import Memory, StateBefore


class KlassSettings(MaskedAnswerSettings):
    """KLASS (arXiv 2511.05664): parallel decoding by confidence and by how stable distributions are; no cache. Its
    scripts for LLaDA take blocks of 64, thresholds 0.6 and 0.015 for GSM8K, and 0.9 and 0.01 for HumanEval."""

    decoder: Literal["klass"] = "klass"

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """A position is ready if its token's probability, without top_p and top_k, is above this, and it is stable."""

    kl_threshold: float = Field(default=0.01, ge=0.0)
    """A position is stable if its divergences, in nats, were below this in the last `kl_history_length` calls."""

    kl_history_length: int = Field(default=2, ge=1)
    """How many calls in a row must agree."""

    unmask_strategy: Literal["all", "max_conf", "min_kl"] = "all"
    """Of the ready positions a call fills all, or the most probable one, or the one that has moved least."""


class KlassSession(MaskedAnswerSession):
    settings: KlassSettings

    may_decide_nothing = True

    def _begin(self) -> None:
        super()._begin()
        self._history = History(self.settings, self.settings.kl_history_length)
        self._inputs_before: tuple[Fill, ...] | None = None
        """Position and token wherever the last call's inputs differ from the canvas; None: there was none."""

    def _window(self) -> Window:
        total = self.max_len
        return Window(range(total), ((total, total),), range(self._block.start, total))

    def _memory(self, fork: Fork) -> Memory:
        if self._inputs_before is None:
            return StateBefore(None)
        masks = ((position, self.vocabulary.mask_token_id) for position, _ in fork.fills)
        return StateBefore((*self._inputs_before, *masks))

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        in_block = {p: score for p, score in scores.items() if p in self._block}
        ready = self._ready(in_block)
        match self.settings.unmask_strategy:
            case _ if not ready:
                count = 1 if self._uses_dream_sampler else self._scheduled_fill_count(self._calls)
                return rank_by_score(in_block)[:count]
            case "all":
                return list(ready)
            case "max_conf":
                return [max(ready, key=lambda p: ready[p])]
            case "min_kl":
                return [min(ready, key=lambda p: self._history.moved(p, scores)[-1])]

    def _ready(self, scores: Scores) -> dict[int, float]:
        """The ready positions, with their probabilities."""
        s = self.settings
        if not self._uses_dream_sampler and self._calls < s.kl_history_length - 1:
            return {}
        confidences = {p: math.exp(score.report.logprobs.item(score.row)) for p, score in scores.items()}
        return {
            p: confidence
            for p, confidence in confidences.items()
            if confidence > s.confidence_threshold and max(self._history.moved(p, scores)) < s.kl_threshold
        }

    def _end(self, plan: Plan, winner: int) -> None:
        before = enumerate(plan.input_ids(plan.branches[winner]), plan.start)
        self._inputs_before = tuple((p, token) for p, token in before if token != self._canvas.ids[p])
        super()._end(plan, winner)

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        """A step's memory follows from the fills before it."""
        return False


KLASS = Decoder(
    KlassSession,
    KlassSettings(
        max_new_tokens=20, block_size=8, confidence_threshold=0.3, kl_threshold=1.0, num_branches=3
    ),
)
