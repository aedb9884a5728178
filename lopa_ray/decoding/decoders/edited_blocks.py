"""Decoders that edit the tokens of the block that they fill: what they share. A call scores the whole block: it fills
masked positions, and from the same logits replaces earlier tokens of the answer, until the decoder ends the block. K/V
enter the cache from the next block's first call, which feeds the block along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Scores, filter_by_constraint
from lopa_ray.decoding.decoders.block_causal import BlockCausalSession, BlockCausalSettings
from lopa_ray.decoding.edits import REFUSED_WITH_EDITS, edits
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.sampling_params import SamplingParams


class EditedBlocksSettings(BlockCausalSettings):
    """The settings that these decoders share."""

    @property
    def refused(self) -> Mapping[str, str]:
        return REFUSED_WITH_EDITS


class EditedBlocksSession(BlockCausalSession):
    """One request: a block at a time, whose tokens are edited until `_block_is_final`."""

    settings: EditedBlocksSettings

    _scores_decided = True

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._settles = False  # whether the last call ends the block, unless masks are left

    @property
    def _block_is_final(self) -> bool:
        return self._settles and not self._canvas.masked_positions(self._block)

    @property
    def _editing_threshold(self) -> float:
        """A token is replaced by the most likely one if that has a probability above this: all, unless overridden."""
        return -1.0

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """LLaDA2 applies top_k before top_p."""
        return replace(super().sampling_params, top_k_first=True)

    @property
    def exhausted(self) -> bool:
        ended = self.settings.stop_at_eos and self.has_ended(self.generated)
        return self._block_is_final and (self._block.stop == self.max_len or ended)

    @property
    def editable(self) -> range:
        return range(0) if self._block_is_final else self._block_answer_span

    def _edits(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        replaced = [d for d in edits(scores, self._canvas) if d.probability > self._editing_threshold]
        return filter_by_constraint(constraint_state, replaced, scores)
