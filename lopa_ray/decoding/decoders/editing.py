"""LLaDA2.1's decoder (arXiv 2602.08676): block diffusion that replaces tokens of its block by sufficiently probable
tokens, until a call without masks changes nothing or there were `max_post_steps` such calls."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.edited_blocks import EditedBlocksSession, EditedBlocksSettings
from lopa_ray.decoding.edits import EditSettings
from lopa_ray.decoding.unmasking_rules import select_above_threshold_or_count
from lopa_ray.protocol.outcome import Decision


class EditingSettings(EditedBlocksSettings, EditSettings):
    """LLaDA2.1 (arXiv 2602.08676): blocks one after the other, whose tokens are edited until they stay. Its report
    has two modes: Quality, thresholds 0.7 and 0.5, and Speed, 0.5 and 0."""

    decoder: Literal["editing"] = "editing"

    confidence_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """Masked positions whose probability is strictly above this are filled."""

    editing_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """A token of the current block is replaced by the most likely one if that has a probability strictly above this."""

    num_to_transfer: int = Field(default=1, ge=1)
    """Masked positions that a pass fills at least, as long as there are as many."""


class EditingSession(EditedBlocksSession):
    settings: EditingSettings

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._post_steps = 0  # calls on the current block since it has no masks

    @property
    def step_limit(self) -> int:
        """Every call decides a position, or is one of the last on its block."""
        blocks = self.settings.max_new_tokens // self.settings.block_size + 2
        return self.settings.max_new_tokens + blocks * self.settings.max_post_steps

    @property
    def _editing_threshold(self) -> float:
        return self.settings.editing_threshold

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        s = self.settings
        return select_above_threshold_or_count(scores, s.confidence_threshold, s.num_to_transfer)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        decisions = super().choose(scores, constraint_state)
        self._post_steps = 0 if any(self._canvas.is_masked(p) for p in scores) else self._post_steps + 1
        self._settles = not decisions or self._post_steps >= self.settings.max_post_steps
        return decisions


EDITING = Decoder(
    EditingSession,
    EditingSettings(**SHORT, block_size=8, editing_threshold=0.2, max_post_steps=3, num_branches=3),
)
