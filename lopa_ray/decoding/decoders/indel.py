"""LLaDA2.2's decoder (JointThresholdInDel of SGLang): block diffusion whose edits also delete and insert.

The model writes DELETE where a token is to go, and SPLIT where one is missing before it: the content of the block
moves, its length does not. A block begins with *original* masks. Masks that come later (behind deletions, before
tokens that were split) are filled too, but no call needs to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import CONSTRAINING
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import PositionScore, Scores
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.edited_blocks import EditedBlocksSession, EditedBlocksSettings
from lopa_ray.decoding.decoders.indel_block import IndelBlock, IndelRule
from lopa_ray.decoding.edits import REFUSED_WITH_EDITS, EditSettings
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Plan

_MOST_LIKELY = "the rule compares the model's own most likely tokens; leave {} out"

_REFUSED = {
    **REFUSED_WITH_EDITS,
    "lookahead": "almost no call only fills masks as the call before would have; use lookahead lopa or leave {} out",
    **dict.fromkeys(("temperature", "top_p", "top_k", "logit_bias"), _MOST_LIKELY),
    **dict.fromkeys(CONSTRAINING, "an insertion or a deletion moves all tokens after it; leave {} out"),
}
"""Settings that this decoder has no place for, and why."""


class IndelSettings(EditedBlocksSettings, EditSettings):
    """LLaDA2.2: blocks one after the other, whose tokens are edited, deleted and inserted until they stay. Models that
    name no DELETE and SPLIT tokens neither delete nor insert."""

    decoder: Literal["indel"] = "indel"

    confidence_threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    """Masked positions whose probability is strictly above this are filled."""

    editing_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    """A token of the current block is replaced by the most likely one if that has a probability strictly above this."""

    @property
    def refused(self) -> Mapping[str, str]:
        return _REFUSED


class IndelSession(EditedBlocksSession):
    settings: IndelSettings

    may_decide_nothing = True
    keeps_prompt_masks = True
    # A fork fills it, whose block then has no mask: what is most likely there may be DELETE or SPLIT.
    _fills_last_mask = False

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._indels = IndelBlock(frozenset(self._open_positions))

    @cached_property
    def rule(self) -> IndelRule:
        s, vocabulary = self.settings, self.vocabulary
        special = vocabulary.mask_token_id, vocabulary.delete_token_id, vocabulary.split_token_id
        thresholds = s.confidence_threshold, s.editing_threshold
        return IndelRule(special, *thresholds, s.max_post_steps, s.block_size + s.max_post_steps)

    @property
    def step_limit(self) -> int:
        blocks = self.settings.max_new_tokens // self.settings.block_size + 2
        return blocks * (self.rule.max_calls + 1)

    @property
    def _block_is_final(self) -> bool:
        return self._indels.is_final

    def _plan(self, num_branches: int) -> Plan:
        plan = super()._plan(num_branches)
        params, most = plan.sampling_params, self._indels.num_candidates
        if params.no_eos_before:
            most += len(self.end_token_ids)
        # Steps of few kinds are of few shapes on an accelerator.
        most = min(1 << (most - 1).bit_length(), self.vocabulary.size)
        return replace(plan, sampling_params=replace(params, top_logprobs=max(params.top_logprobs, most)))

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        raise NotImplementedError("masks are filled by `choose`")

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        ids = {p: self._canvas.ids[p] for p in scores}
        candidates = {p: self._candidates(score) for p, score in scores.items()}
        self._indels, self._shift, filled = self._indels.step(ids, candidates, self.rule)
        mask = self._canvas.mask_id
        self._canvas.set_tokens((to, mask if at is None else ids[at]) for at, to in self._shift.moves)
        return filled + self._ended(filled, None)

    def _candidates(self, score: PositionScore) -> list[Decision]:
        """The most likely tokens that the position may get."""
        own = self._shown(score).decision
        early = self.end_token_ids if own.position < self.sampling_params.no_eos_before else ()
        # Where a probability is almost 1, its logarithm is too coarse to compare positions by.
        return [
            own if token == own.token else replace(own, token=token, probability=math.exp(lp), logprob=lp)
            for token, lp in score.decision.top_logprobs
            if token not in early
        ]

    def _shown(self, score: PositionScore) -> PositionScore:
        """Of the most likely tokens those that were asked for."""
        return score._replace(report=score.report.with_tops(self.settings.top_logprobs))

    def _forkable(self, scores: Scores) -> Scores:
        """Masks that stay where they were scored, and whose token stays where it is filled."""
        moved = {target for _, target in self._shift.moves}
        return {
            p: self._shown(score)
            for p, score in super()._forkable(scores).items()
            if p not in moved and score.report.tokens.item(score.row) not in self.rule.special
        }


INDEL = Decoder(
    IndelSession,
    IndelSettings(**SHORT, block_size=8, editing_threshold=0.2, max_post_steps=3, num_branches=3),
)
