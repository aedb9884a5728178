"""WINO (arXiv 2507.18578): fills boldly, and masks tokens again that the model does not confirm.

Beside the answer a call has a shadow slot for each position of the block, which does not see its token (`ShadowSlots`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Fork, Scores
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.vanilla import MaskedAnswerSession, MaskedAnswerSettings
from lopa_ray.decoding.edits import REFUSED_WITH_EDITS
from lopa_ray.decoding.unmasking_rules import select_above_threshold
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.scoring import Memory, ShadowSlots

FILLED_SHARE, LEAST_CAP, MOST_CAP = (
    0.7,
    5,
    20,
)  # what a call may fill of a block's masks; published code fixes them
MANY = 30  # the first call of a block may mask again all but one of so many


class WinoSettings(MaskedAnswerSettings):
    """WINO (arXiv 2507.18578): bold fills, of which later calls on the block take back what they do not confirm; no
    cache. Its configurations have blocks of 128."""

    decoder: Literal["wino"] = "wino"

    confidence_threshold: float = Field(default=0.6, ge=0.0, le=1.0)
    """A call fills the masked positions of the block with at least this probability, and always the best one: at most
    0.7 of them, or 5 if that is more, and at most 20."""

    threshold_back: float = Field(default=0.9, ge=0.0, le=1.0)
    """A call that fills two or more masks tokens again that their shadow slots give a lower probability than this,
    fewer than the call before it has filled."""

    @property
    def refused(self) -> Mapping[str, str]:
        why = (
            "it takes tokens back only where a call fills masks, so it would not revise a draft; leave {} out"
        )
        return {**REFUSED_WITH_EDITS, "draft": why}

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        for name in filter(self.is_changed, ("steps", "eps")):
            yield name, f" {getattr(self, name)} with decoder wino, which has no schedule; leave {name} out"


class WinoSession(MaskedAnswerSession):
    settings: WinoSettings

    _scores_decided = True

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._last_filled = MANY

    @property
    def editable(self) -> range:
        return range(0) if self._block_is_final else self._block

    def _memory(self, fork: Fork) -> Memory:
        block, ids = self._block, self._canvas.with_fills(fork.fills).ids
        shift = int(self.vocabulary.shifted)
        slots = range(block.start - shift, block.stop - shift)
        return ShadowSlots(slots, self.vocabulary.mask_token_id, tuple(ids[block.start : block.stop]))

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        cap = min(max(int(FILLED_SHARE * len(scores)), LEAST_CAP), MOST_CAP)
        return select_above_threshold(scores, self.settings.confidence_threshold, cap)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        filled = super().choose(scores, constraint_state)
        most, self._last_filled = self._last_filled - 1, len(filled)
        return filled + (self._doubted(scores)[:most] if len(filled) > 1 else [])

    def _doubted(self, scores: Scores) -> list[Decision]:
        """The mask in place of tokens that are not confirmed, the least probable first."""
        mask = self.vocabulary.mask_token_id
        probabilities = {
            p: score.report.memory.item(score.row)
            for p, score in scores.items()
            if not self._canvas.is_masked(p)
        }
        doubted = [p for p, q in probabilities.items() if q < self.settings.threshold_back]
        doubted.sort(key=probabilities.__getitem__)
        return [
            replace(scores[p].decision, token=mask, probability=1 - probabilities[p], logprob=0.0)
            for p in doubted
        ]


WINO = Decoder(WinoSession, WinoSettings(**SHORT, block_size=8, threshold_back=0.5, num_branches=3))
