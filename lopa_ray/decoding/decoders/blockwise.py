"""Decoders that finish one block before they begin the next: what they share.

They differ in what a call feeds and reads (its `Window`) and in the positions it fills (`_filling_rule`). The
lookahead on top is the same for all: forks within the current block compete with the anchor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.constraints.constraint import ConstraintState, TokenBitmasks
from lopa_ray.decoding.branching import (
    ANCHOR,
    Fork,
    PositionScore,
    filter_by_constraint,
    is_forced,
    scores_by_position,
)
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.settled import SettledChoices
from lopa_ray.protocol.outcome import BlockView, Decision, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, Segment, Spans
from lopa_ray.protocol.step_report import BranchReport


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that a call feeds, reads, scores and stages; the same for all its branches. See `Plan`."""

    input_span: range
    segments: tuple[Segment, ...]
    scored: range
    cached: Spans = ()
    to_stage: Spans = ()
    stage_shared: bool = False


class BlockwiseSession(DecodeSession):
    """One request: all positions that it will have, and the block that is being filled."""

    def _begin(self) -> None:
        self._ids = self.prompt + [self.vocabulary.mask_token_id] * self.settings.max_new_tokens
        self._block = self._block_at(len(self.prompt))
        self._calls = 0
        """Calls that have filled the current block."""
        self._lookahead = Lookahead(self.settings)
        self._settled = SettledChoices(self.settings)
        self._branches: list[Fork] = [ANCHOR]
        self._commit: Commit | None = None

    # What a decoder provides

    @abstractmethod
    def _block_at(self, position: int) -> range:
        """The block in which `position` lies."""

    @abstractmethod
    def _window(self) -> Window:
        """The window of the coming call."""

    @abstractmethod
    def _filling_rule(self, scores: dict[int, PositionScore]) -> list[int]:
        """The positions to fill, of the current block's masked ones, by their scores."""

    # What they share

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt as they stand, masks included."""
        return self._ids[len(self.prompt) :]

    @property
    def exhausted(self) -> bool:
        """Nothing is masked."""
        return not self._masked_positions(range(self._block.start, self.max_len))

    @property
    def _block_answer_span(self) -> range:
        """The current block, less what the prompt has of it."""
        return range(max(self._block.start, len(self.prompt)), self._block.stop)

    def _masked_positions(self, span: range) -> list[int]:
        return [p for p in span if self._ids[p] == self.vocabulary.mask_token_id]

    def _still_masked(self, scores: dict[int, PositionScore]) -> list[int]:
        return [p for p in scores if self._ids[p] == self.vocabulary.mask_token_id]

    def _branch_constraint_state(self, fork: Fork) -> ConstraintState | None:
        constraint_state = self._constraint_state(self.generated)
        if constraint_state is not None:
            for position, token in fork.fills:
                constraint_state.fill(position, token)
        return constraint_state

    def _plan(self, num_branches: int) -> Plan:
        window = self._window()
        self._branches = self._lookahead.next_branches(num_branches)
        bitmasks = TokenBitmasks()
        return Plan(
            step=self.steps + 1,
            start=window.input_span.start,
            canvas=tuple(self._ids[window.input_span.start : window.input_span.stop]),
            branches=tuple(
                Branch(
                    segments=window.segments,
                    fills=fork.fills,
                    bitmask_ids=bitmasks.add(self._branch_constraint_state(fork), window.scored),
                )
                for fork in self._branches
            ),
            cached=window.cached,
            scored=window.scored,
            to_stage=window.to_stage,
            stage_shared=window.stage_shared,
            commit=self._commit,
            sampling_params=self.sampling_params,
            token_bitmasks=bitmasks.unique,
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        confidences = self._lookahead.confidences(self._branches, reports)
        winner = self._lookahead.select_winner(confidences)
        scores = scores_by_position(reports[winner])
        won = self._branches[winner]
        constraint_state = self._branch_constraint_state(won)
        self._set_tokens(won.decisions)
        filled = self._fill(scores, constraint_state)
        self._calls += bool(plan.scored)
        self._lookahead.update_forks(self._still_masked(scores), scores, constraint_state)
        self._commit = Commit(plan.step, winner, plan.to_stage, plan.stage_shared) if plan.to_stage else None
        self._advance_block(plan)
        return StepOutcome(
            step=plan.step,
            winner=winner,
            confidences=confidences,
            adopted=won.decisions,
            filled=filled,
            canvas=tuple(self.generated),
            blocks=self._block_views(),
        )

    def _set_tokens(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._ids[decision.position] = decision.token

    def _fill(
        self, scores: dict[int, PositionScore], constraint_state: ConstraintState | None
    ) -> tuple[Decision, ...]:
        """Fill what the rule chooses and a constraint allows, and what a constraint leaves no choice about."""
        chosen = set(self._filling_rule(scores)) if scores else set()
        chosen.update(p for p in scores if is_forced(constraint_state, p))
        filled = filter_by_constraint(constraint_state, [scores[p].decision for p in sorted(chosen)], scores)
        self._set_tokens(filled)
        settled = [scores[p].decision for p in self._settled.positions(self._still_masked(scores), scores)]
        allowed = filter_by_constraint(constraint_state, settled, scores)
        self._set_tokens(allowed)
        filled += allowed
        self._settled.record(scores, filled=bool(filled))
        masked = self._still_masked(scores)
        if self._lookahead.fills_last_mask and len(masked) == 1:
            last = filter_by_constraint(constraint_state, [scores[masked[0]].decision], scores)
            self._set_tokens(last)
            filled += last
        return tuple(filled)

    def _advance_block(self, plan: Plan) -> None:
        """Go on to the next block when this one is decided and there is one."""
        if not self._masked_positions(self._block) and self._block.stop < self.max_len:
            self._block = self._block_at(self._block.stop)
            self._calls = 0

    def _block_views(self) -> tuple[BlockView, ...]:
        first = len(self.prompt)
        views = [BlockView(0, first, "in_cache", 0, True)]
        end = first + len(self.generated)
        while first < end:
            block = self._block_at(first)
            masks = len(self._masked_positions(block))
            state = "active" if masks else "in_cache"
            views.append(BlockView(first, block.stop, state, masks, block.start <= self._block.start))
            first = block.stop
        return tuple(views)
