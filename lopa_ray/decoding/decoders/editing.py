"""LLaDA2.1's decoder (arXiv 2602.08676): block diffusion that also edits the tokens of the block that it fills.

A call scores the whole block. It fills masked positions (mask to token) and, from the same logits, replaces tokens of
the answer that were there before it (token to token). When no mask is left the calls go on, until one changes nothing
or there were `max_post_steps` of them. So the tokens of a block are final only at its end.

K/V of a block enter the cache from the next block's first call, which feeds it along: these are K/V of final tokens,
however the block has ended, and no call is made for them alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, model_validator

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import PositionScore, filter_by_constraint
from lopa_ray.decoding.decoders.block_causal import BlockCausalSession, BlockCausalSettings
from lopa_ray.decoding.edits import check_edits_can_be_made, edits_above, report_of_masks
from lopa_ray.decoding.filling_rules import select_above_threshold_or_count
from lopa_ray.decoding.filling_session import PlannedBranch
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.step_report import BranchReport


class EditingSettings(BlockCausalSettings):
    """LLaDA2.1 (arXiv 2602.08676): blocks one after the other, whose tokens are edited until they stay. Its report
    has two modes: Quality, thresholds 0.7 and 0.5, and Speed, 0.5 and 0."""

    decoder: Literal["editing"] = "editing"

    block_size: int = Field(default=32, ge=1)
    """Positions per block, counted from the start of the prompt; what the model was trained with."""

    confidence_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """Masked positions whose probability is strictly above this are filled."""

    editing_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """A token of the current block is replaced by the most likely one if that has a probability strictly above this."""

    max_post_steps: int = Field(default=16, ge=0)
    """Most forward passes on a block without masks."""

    num_to_transfer: int = Field(default=1, ge=1)
    """Masked positions that a pass fills at least, as long as there are as many."""

    @model_validator(mode="after")
    def _edits_can_be_made(self) -> Self:
        check_edits_can_be_made(self, "decoder editing")
        return self


class EditingSession(BlockCausalSession):
    """One request under LLaDA2.1's decoder."""

    settings: EditingSettings

    scores_decided = True

    def _begin(self) -> None:
        super()._begin()
        self._post_steps = 0
        """Calls on the current block since it has no masks."""
        self._changed = True
        """Whether the last call filled or edited anything."""

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """LLaDA2 applies top_k before top_p."""
        return replace(super().sampling_params, top_k_first=True)

    @property
    def exhausted(self) -> bool:
        """The current block is final, and it is the last one: there is no room, or the answer ends with it."""
        ended = self.settings.stop_at_eos and self.has_ended(self.generated)
        return self._block_is_final and (self._block.stop == self.max_len or ended)

    @property
    def step_limit(self) -> int:
        """Every call decides a position, or is one of the last on its block."""
        blocks = self.settings.max_new_tokens // self.settings.block_size + 2
        return self.settings.max_new_tokens + blocks * self.settings.max_post_steps

    @property
    def editable(self) -> range:
        """The current block's part of the answer, until its end."""
        return range(0) if self._block_is_final else self._block_answer_span

    @property
    def _block_is_final(self) -> bool:
        ends = not self._changed or self._post_steps >= self.settings.max_post_steps
        return ends and not self._masked_positions(self._block)

    def _report_of_masks(self, branch: PlannedBranch[list[int]], report: BranchReport) -> BranchReport:
        return report_of_masks(report, branch.canvas, self.vocabulary.mask_token_id)

    def _filling_rule(self, scores: dict[int, PositionScore]) -> list[int]:
        settings = self.settings
        return select_above_threshold_or_count(
            scores, settings.confidence_threshold, settings.num_to_transfer
        )

    def choose(
        self, scores: dict[int, PositionScore], constraint_state: ConstraintState | None
    ) -> list[Decision]:
        """What a call fills, then what it edits, as far as a constraint allows it."""
        masked = {p: score for p, score in scores.items() if self._is_masked(p)}
        filled = super().choose(masked, constraint_state)
        replaced = edits_above(
            scores, self._ids, self.vocabulary.mask_token_id, self.settings.editing_threshold
        )
        edits = filter_by_constraint(constraint_state, list(replaced), scores)
        self._post_steps = 0 if masked else self._post_steps + 1
        self._changed = bool(filled or edits)
        return filled + edits
