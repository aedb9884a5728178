"""Decoders that finish one block before they begin the next: what they share.

They differ in what a call feeds and reads (its `Window`) and in the positions it fills (`_chosen`). The
lookahead on top is the same for all: forks within the current block race against the anchor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.constraints.constraint import ConstraintState, TokenBitmasks
from lopa_ray.decoding.branching import Fork, Score, admit, forced, scores_by_position
from lopa_ray.decoding.lookahead import Lookahead, adopted
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import BlockView, Decision, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, Segment, Spans
from lopa_ray.protocol.report import BranchReport


@dataclass(frozen=True, slots=True)
class Window:
    """What a call feeds, sees, reads, scores and keeps; alike for all its branches. See `Plan`."""

    fed: range
    segments: tuple[Segment, ...]
    scored: range
    cached: Spans = ()
    to_stage: Spans = ()
    stage_shared: bool = False


class BlockwiseSession(DecodeSession):
    """One request: all positions that it will have, and the block that is being filled."""

    def _begin(self) -> None:
        self._ids = self.prompt + [self.vocabulary.mask_token_id] * self.settings.max_new_tokens
        self._block = self._block_after(len(self.prompt))
        self._calls = 0
        """Calls that have filled the current block."""
        self._lookahead = Lookahead(self.settings)
        self._field: list[Fork | None] = [None]
        self._commit: Commit | None = None

    # What a decoder provides

    @abstractmethod
    def _block_after(self, position: int) -> range:
        """The block in which `position` lies."""

    @abstractmethod
    def _window(self) -> Window:
        """The coming call's."""

    @abstractmethod
    def _chosen(self, scores: dict[int, Score]) -> list[int]:
        """Positions to fill, of the current block's masked ones, from their scores."""

    # What they share

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""
        return self._ids[len(self.prompt) :]

    @property
    def exhausted(self) -> bool:
        """Nothing is masked."""
        return not self._masked(range(self._block.start, self.max_len))

    @property
    def _open(self) -> range:
        """The current block, less what the prompt has of it."""
        return range(max(self._block.start, len(self.prompt)), self._block.stop)

    def _masked(self, span: range) -> list[int]:
        return [p for p in span if self._ids[p] == self.vocabulary.mask_token_id]

    def _still_masked(self, scores: dict[int, Score]) -> list[int]:
        return [p for p in scores if self._ids[p] == self.vocabulary.mask_token_id]

    def _fit_of(self, fork: Fork | None) -> ConstraintState | None:
        fit = self._fit(self.generated)
        if fit is not None and fork is not None:
            fit.fill(*fork.decision.fill)
        return fit

    def _plan(self, num_branches: int) -> Plan:
        window = self._window()
        self._field = self._lookahead.field(num_branches)
        bitmasks = TokenBitmasks()
        return Plan(
            epoch=0,
            step=0,
            start=window.fed.start,
            canvas=tuple(self._ids[window.fed.start : window.fed.stop]),
            branches=tuple(
                Branch(
                    segments=window.segments,
                    fills=tuple(decision.fill for decision in adopted(fork)),
                    bitmask_ids=bitmasks.add(self._fit_of(fork), window.scored),
                )
                for fork in self._field
            ),
            cached=window.cached,
            scored=window.scored,
            to_stage=window.to_stage,
            stage_shared=window.stage_shared,
            commit=self._commit,
            sampling_params=self.sampling,
            token_bitmasks=bitmasks.unique,
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        confidences = self._lookahead.confidences(self._field, reports)
        won = self._lookahead.winner(confidences)
        scores = scores_by_position(reports[won])
        fit = self._fit_of(self._field[won])
        taken = adopted(self._field[won])
        self._put(taken)
        filled = self._fill(scores, fit)
        self._calls += bool(plan.scored)
        self._lookahead.look(self._still_masked(scores), scores, fit)
        self._commit = Commit(plan.step, won, plan.to_stage, plan.stage_shared) if plan.to_stage else None
        self._turn(plan)
        return StepOutcome(
            step=plan.step,
            winner=won,
            confidences=confidences,
            adopted=taken,
            filled=filled,
            canvas=tuple(self.generated),
            blocks=self._views(),
        )

    def _put(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._ids[decision.position] = decision.token

    def _fill(self, scores: dict[int, Score], fit: ConstraintState | None) -> tuple[Decision, ...]:
        """Fill what the rule chooses and a constraint admits, and what a constraint leaves no choice about."""
        chosen = set(self._chosen(scores)) if scores else set()
        chosen.update(p for p in scores if forced(fit, p))
        filled = admit(fit, [scores[p].decision for p in sorted(chosen)], scores)
        self._put(filled)
        left = self._still_masked(scores)
        if self._lookahead.adopts_last and len(left) == 1:
            last = admit(fit, [scores[left[0]].decision], scores)
            self._put(last)
            filled += last
        return tuple(filled)

    def _turn(self, plan: Plan) -> None:
        """Go on to the next block when this one is decided and there is one."""
        if not self._masked(self._block) and self._block.stop < self.max_len:
            self._block = self._block_after(self._block.stop)
            self._calls = 0

    def _views(self) -> tuple[BlockView, ...]:
        first = len(self.prompt)
        views = [BlockView(0, first, "in_cache", 0, True)]
        end = first + len(self.generated)
        while first < end:
            block = self._block_after(first)
            masks = len(self._masked(block))
            state = "active" if masks else "in_cache"
            views.append(BlockView(first, block.stop, state, masks, block.start <= self._block.start))
            first = block.stop
        return tuple(views)
