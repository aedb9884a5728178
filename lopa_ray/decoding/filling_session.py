"""FillingSession: a decoder as a rule that fills a canvas step by step, with LoPA's lookahead on top."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Self

from lopa_ray.constraints.token_bitmasks import TokenBitmasks
from lopa_ray.decoding.branching import (
    ANCHOR,
    Fork,
    Scores,
    filter_by_constraint,
    report_of_masks,
    scores_by_position,
)
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.planned_branch import CanvasT, PlannedBranch, Window
from lopa_ray.decoding.rule_session import RuleSession
from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.protocol.outcome import BlockView, Decision, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Fill, Plan, Segment
from lopa_ray.protocol.scoring import ChooseTokens, Memory
from lopa_ray.protocol.step_report import BranchReport


class FillingSession(RuleSession[CanvasT]):
    """One request. A step of it scores branches, and a denoising step follows from the report of the winner."""

    def _begin(self) -> None:
        super()._begin()
        self._lookahead = Lookahead(self.settings)
        self._branches: list[PlannedBranch[CanvasT]] = []
        self._commit: Commit | None = None

    # What a decoder provides

    @abstractmethod
    def _windows(self, canvases: Sequence[CanvasT]) -> Sequence[Window]:
        """The windows of the coming step's branches, by their canvases. All begin at the same position, and read and
        store the same K/V."""

    @abstractmethod
    def _end_step(self, branch: Branch) -> None:
        """Update what is cached, and where filling goes on, after the fills from a branch."""

    @abstractmethod
    def block_views(self) -> tuple[BlockView, ...]:
        """The blocks as they stand."""

    @property
    def _fills_last_mask(self) -> bool:
        return self._lookahead.fills_last_mask

    def _forkable(self, scores: Scores) -> Scores:
        """The positions that forks may fill, and the scores of what they fill there."""
        return {p: score for p, score in scores.items() if self._canvas.is_masked(p)}

    def _memory(self, fork: Fork) -> Memory:
        """The question of a rule with memory to a branch of the coming step."""
        return self._history.credits

    def _forked(self, fork: Fork) -> CanvasT:
        """The canvas of a branch of the coming step."""
        return self._canvas.with_fills(fork.fills)

    # What they share

    def _plan(self, num_branches: int) -> Plan:
        forks = self._lookahead.next_branches(num_branches)
        canvases = [self._forked(fork) for fork in forks]
        states = [self._constraint_state(self._answer(canvas)) for canvas in canvases]
        self._branches = [PlannedBranch(*parts) for parts in zip(forks, canvases, states, strict=True)]
        windows = self._windows(canvases)
        start, stop = windows[0].input_span.start, max(window.input_span.stop for window in windows)
        ids, bitmasks, decided = self._canvas.ids[start:stop], TokenBitmasks(), self._scores_decided
        ids += [self.vocabulary.mask_token_id] * (stop - start - len(ids))
        # Shared as far as possible: pickle writes an object once.
        unconstrained = ChooseTokens(self.draw_key, memory=self._memory(ANCHOR))
        branches = []
        for branch, window in zip(self._branches, windows, strict=True):
            memory = self._memory(branch.fork)
            scoring = (
                unconstrained if memory == unconstrained.memory else replace(unconstrained, memory=memory)
            )
            bitmask_ids = bitmasks.add(branch.constraint_state, window.scored, scores_decided=decided)
            branches.append(
                Branch(
                    segments=window.segments,
                    scored=window.scored,
                    fills=branch.fork.fills,
                    to_stage=window.to_stage,
                    scoring=replace(scoring, bitmask_ids=bitmask_ids) if bitmask_ids else scoring,
                    causal_stop=window.causal_stop,
                )
            )
        return Plan(
            step=self.steps + 1,
            start=start,
            canvas=tuple(ids),
            branches=tuple(branches),
            cached=windows[0].cached,
            draft_adapter=windows[0].draft_adapter,
            stage_shared=windows[0].stage_shared,
            logit_changes=self.step_logit_changes,
            commit=self._commit,
            sampling_params=self.sampling_params,
            token_bitmasks=bitmasks.unique,
            scores_decided=decided,
        )

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        forks = [branch.fork for branch in self._branches]
        of_masks = reports
        if self._scores_decided:
            pairs = zip(self._branches, reports, strict=True)
            of_masks = [report_of_masks(report, branch.canvas) for branch, report in pairs]
        confidences = self._lookahead.confidences(forks, of_masks)
        winner = self._lookahead.select_winner(confidences)
        won = self._branches[winner]
        constraint_state = won.constraint_state
        scores = scores_by_position(reports[winner])
        if plan.scores_decided:
            # What is given is like the prompt: no step edits it.
            given = self.given.tokens
            scores = {p: score for p, score in scores.items() if p - len(self.prompt) not in given}
        self._canvas = won.canvas
        filled = self.choose(scores, constraint_state)
        self._canvas.set_tokens(decision.fill for decision in filled)
        masked = self._forkable(scores)
        if self._fills_last_mask and len(masked) == 1:
            last = filter_by_constraint(constraint_state, [s.decision for s in masked.values()], masked)
            last += self._ended(last, constraint_state)
            self._canvas.set_tokens(decision.fill for decision in last)
            filled += last
            masked = self._forkable(masked)
        self._lookahead.update_forks(masked, masked, constraint_state)
        self._end(plan, winner)
        return StepOutcome(
            step=plan.step,
            winner=winner,
            confidences=confidences,
            adopted=won.fork.decisions,
            rule_steps=(RuleStep(winner, tuple(filled), self._shift),),
            canvas=tuple(self.generated),
            blocks=self.block_views(),
            commit=self._commit,
            editable=self.editable,
        )

    def _end(self, plan: Plan, winner: int) -> None:
        branch = plan.branches[winner]
        self._commit = plan.commit_of(winner) if branch.to_stage else None
        self._branches = []
        self.rule_steps += 1
        self._end_step(branch)

    # Denoising steps one by one, for drafts and their verification

    @property
    def exact_cache(self) -> bool:
        """Whether K/V of decided blocks depend on no token after the block, whenever they are computed."""
        return False

    def answer_in_window(self, fills: Sequence[Fill]) -> tuple[int, ...] | None:
        """The answer with these tokens, if a step in that state surely differs from the planned one in tokens alone;
        None with draws, penalties and constraints."""
        plan = self.plan()
        is_plain = not (plan.token_bitmasks or self.logit_changes or self.settings.temperature)
        if not is_plain or plan.branches[0].to_stage or not self._keeps_blocks(fills):
            return None
        if len(self.with_ends(fills)) > len(fills):
            return None
        answer, first = list(self.generated), len(self.prompt)
        for position, token in fills:
            answer[position - first] = token
        return None if self._is_decided(answer) else tuple(answer)

    def _keeps_blocks(self, fills: Sequence[Fill]) -> bool:
        """Whether no block begins or ends in the planned step, if that fills these."""
        return False

    def rule_blocks(self, beyond: Collection[Fill] = (), calls: int = 0) -> list[RuleBlock] | None:
        """The planned canvas's masked positions by block, if the canvas has the tokens `beyond` as well, so many calls
        later; None where the rule is not one of `RuleBlock`."""
        return None

    def scored_masks(self) -> list[int]:
        """The positions that the planned step of one branch scores, ascending."""
        plan, mask = self.plan(), self.vocabulary.mask_token_id
        return [p for p in plan.branches[0].scored if plan.canvas[p - plan.start] == mask]

    def lane_segments(self, start: int) -> tuple[Segment, ...]:
        """The segments of the planned branch, if its rows begin at `start`, which is not after the plan's start."""
        return self.plan().branches[0].segments

    def peek(self, scores: Scores) -> list[Decision]:
        """The decisions of `choose` on the planned canvas of one branch. Nothing changes."""
        peeking = self._copy()
        peeking._canvas = self._branches[0].canvas
        return peeking.choose(scores, self._constraint_state(peeking.generated))

    def after(self, fills: Iterable[Fill]) -> Self:
        """A copy in the state after the planned step of one branch, if it fills these. The step must be planned."""
        copied, branch = self._copy(), self._branches[0]
        copied._branches = [PlannedBranch(branch.fork, branch.canvas.copy(), branch.constraint_state)]
        copied.finish_rule_step(fills)
        return copied

    def _copy(self) -> Self:
        copied = object.__new__(type(self))  # copy.copy is slower
        copied.__dict__.update(self.__dict__)
        return copied

    def choose_planned(self, scores: Scores) -> list[Decision]:
        """`choose` for the planned step of one branch. `finish_rule_step` must follow."""
        branch = self._branches[0]
        self._canvas = branch.canvas
        return self.choose(scores, branch.constraint_state)

    def allows(self, fills: Sequence[Fill]) -> bool:
        """Whether the constraint allows these together on the planned canvas, and with what `choose_planned` chose."""
        constraint_state = self._branches[0].constraint_state
        return not fills or constraint_state is None or constraint_state.allows_together(fills)

    def finish_rule_step(self, fills: Iterable[Fill]) -> None:
        """Take the planned step of one branch as done: it has filled these."""
        plan, self._pending_plan = self.plan(), None
        self._canvas = self._branches[0].canvas
        self._canvas.set_tokens(fills)
        self.steps += 1
        self._end(plan, 0)
        self.finish_reason = self._finish_reason()
