"""LoPA (arXiv 2512.16229, section 3 and algorithm 1) on D2F's block-parallel canvas.

With one branch this is D2F's decoder (arXiv 2508.09192). Semantics follow the published
code, quirks that decide tokens included, with these deviations: two identical branches are
evaluated once, the mask token is never chosen, the last block is cut so that
`max_new_tokens` is exact, and a request may end at the first EOS (`stop_at_eos`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.config.decoder_settings import BlockSettings
from lopa_ray.constraints.constraint import ConstraintState, TokenBitmasks
from lopa_ray.decoding.branching import Fork, anchor_fills, scores_by_position
from lopa_ray.decoding.canvas import BlockState, Canvas
from lopa_ray.decoding.lookahead import Lookahead, adopted
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, Segment
from lopa_ray.protocol.report import BranchReport


@dataclass(frozen=True, slots=True)
class Candidate:
    """A branch of the coming step: which fork it is (None: the anchor), its canvas, and how that stands under
    the request's constraint."""

    fork: Fork | None
    canvas: Canvas
    fit: ConstraintState | None


class LopaSession(DecodeSession):
    """One LoPA request: an anchor canvas, and per step the forks made from the last winner."""

    settings: BlockSettings

    def _begin(self) -> None:
        self._lookahead = Lookahead(self.settings)
        self._anchor = Canvas(self.prompt, self.vocabulary.mask_token_id)
        self._candidates: list[Candidate] = []
        self._commit: Commit | None = None

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""
        return self._anchor.generated

    @property
    def exhausted(self) -> bool:
        """Nothing is masked, nothing is active, and no block may be added."""
        anchor = self._anchor
        return not anchor.masks and not anchor.active and not self._may_grow(anchor)

    def _may_grow(self, canvas: Canvas) -> bool:
        return len(canvas) < self.max_len and not self.ended(canvas.generated)

    # Planning

    def _candidate(self, fork: Fork | None) -> Candidate:
        """A branch grows on its own: a fork may earn its next block a step before the anchor."""
        settings = self.settings
        canvas = self._anchor.fork(tuple(decision.fill for decision in adopted(fork)))
        if self._may_grow(canvas):
            canvas.grow(settings.block_add_threshold, settings.block_size, self.max_len)
        canvas.activate(settings.decoded_token_threshold)
        return Candidate(fork, canvas, self._fit(canvas.generated))

    def _plan(self, num_branches: int) -> Plan:
        candidates = self._candidates = [
            self._candidate(fork) for fork in self._lookahead.field(num_branches)
        ]

        # Blocks settle by the anchor alone, so they stand alike on every branch.
        to_cache = [block for block in self._anchor.blocks if block.state is BlockState.TO_CACHE]
        settled = self._anchor.settled
        start = to_cache[0].start if to_cache else settled
        longest = max((candidate.canvas for candidate in candidates), key=len)
        bitmasks = TokenBitmasks()
        return Plan(
            epoch=0,
            step=0,
            start=start,
            canvas=tuple(self._anchor.ids[start:])
            + (self.vocabulary.mask_token_id,) * (len(longest) - len(self._anchor)),
            branches=tuple(
                Branch(
                    segments=self._segments(c.canvas, start),
                    fills=tuple(decision.fill for decision in adopted(c.fork)),
                    bitmask_ids=bitmasks.add(c.fit, range(settled, len(c.canvas))),
                )
                for c in candidates
            ),
            cached=(range(start),) if start else (),
            scored=range(settled, len(longest)),
            to_stage=(range(start, settled),) if to_cache else (),
            stage_shared=self.settings.commit_protocol == "single_phase",
            commit=self._commit,
            sampling_params=self.sampling,
            token_bitmasks=bitmasks.unique,
        )

    def _segments(self, canvas: Canvas, start: int) -> tuple[Segment, ...]:
        if self.settings.window_attention == "full":
            return ((len(canvas), len(canvas)),)
        return tuple((block.stop, block.stop) for block in canvas.blocks if block.start >= start)

    # Deciding

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        confidences = self._lookahead.confidences([c.fork for c in self._candidates], reports)
        won = self._lookahead.winner(confidences)
        anchor, fit = self._candidates[won].canvas, self._candidates[won].fit
        scores = scores_by_position(reports[won])

        fork = self._candidates[won].fork
        self._candidates = []

        filled = anchor_fills(anchor, scores, self.settings.confidence_threshold, fit)
        for decision in filled:
            anchor.fill(decision.position, decision.token)
        self._anchor = anchor
        self._lookahead.look((p for block in anchor.active for p in anchor.masked(block)), scores, fit)

        self._commit = Commit(plan.step, won, plan.to_stage, plan.stage_shared) if plan.to_stage else None
        anchor.mark_cached()
        anchor.settle()
        return StepOutcome(
            step=plan.step,
            winner=won,
            confidences=confidences,
            adopted=adopted(fork),
            filled=tuple(filled),
            canvas=tuple(anchor.generated),
            blocks=anchor.views(),
        )
