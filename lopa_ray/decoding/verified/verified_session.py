"""VerifiedSession: a decoder's rule with drafts of its next steps, verified in the same forward.

Branch 0 of a step is the anchor, the state that the rule is in. The others are drafts: states that it will probably be
in. The rule takes the anchor's report, and as long as the state that it is then in is one of the branches, that
branch's report: one forward does several denoising steps. Published as Spiffy (arXiv 2509.18085) and FreeDave (arXiv
2510.00294), and with a relaxed acceptance as PSD (arXiv 2605.15609).

With exact acceptance the tokens are the same as with one branch: the session compares all that a report of the plan of
one branch depends on. On CPU in fp32 reports agree in every bit, elsewhere up to rounding that depends on the forward's
rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.branching import PositionScore, Scores
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.lookahead import NO_MASKS_CONFIDENCE
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.verified.draft_tree import Draft, DraftTree
from lopa_ray.decoding.verified.evaluated_state import EvaluatedState, EvaluatedStates, StateKey
from lopa_ray.protocol.outcome import Decision, FinishReason, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest
from lopa_ray.protocol.scoring import ChooseTokens
from lopa_ray.protocol.step_report import BranchReport

MOST_STATES = 16  # evaluated states that a request keeps from step to step


class VerifiedSession(DecodeSession):
    """One request: its rule, a session of the decoder that plans one branch at a time, and what is known of states."""

    settings: LookaheadSettings

    def __init__(self, rule: FillingSession[Any], settings: LookaheadSettings) -> None:
        """`rule` is a session that has not begun, with the same settings but for the lookahead."""
        self._rule = rule
        super().__init__(rule.prompt, settings, rule.vocabulary, rule.constraint, rule.given)

    def _begin(self) -> None:
        self._states = EvaluatedStates(MOST_STATES)
        self._tree = DraftTree(self.settings)
        self._drafts: list[Draft] = []  # the branches of the coming step, the anchor first
        self._commit: Commit | None = None

    @property
    def generated(self) -> list[int]:
        return self._rule.generated

    @property
    def exhausted(self) -> bool:
        return self._rule.exhausted

    @property
    def step_limit(self) -> int:
        return self._rule.step_limit

    def _finish_reason(self) -> FinishReason | None:
        return self._rule.finish_reason

    # Planning

    def _plan(self, num_branches: int) -> Plan:
        anchor = Draft.of(self._rule, frozenset(), 1.0)
        rows = anchor.plan.max_branch_rows
        budget = CostBudget.of(self.settings, self.load, num_branches, rows)
        budget.take(anchor.probability)
        self._drafts = [anchor, *self._tree.drafts(anchor, self._states, budget)][: budget.num_branches]
        plan = anchor.plan
        start = min(draft.plan.start for draft in self._drafts)
        bitmasks: dict[bytes, int] = {}
        return replace(
            plan,
            step=self.steps + 1,
            start=start,
            canvas=self._canvas_from(start),
            branches=tuple(self._branch(draft, plan.start, bitmasks) for draft in self._drafts),
            stage_shared=plan.stage_shared and len(self._drafts) == 1,
            commit=self._commit,
            token_bitmasks=tuple(bitmasks),
        )

    def _canvas_from(self, start: int) -> tuple[int, ...]:
        """The current state's canvas from a position on, as far as any draft feeds it."""
        anchor, mask = self._drafts[0].plan, self.vocabulary.mask_token_id
        widest = max(self._drafts, key=lambda draft: draft.plan.branches[0].stop)
        stop = widest.plan.branches[0].stop
        ids = [*self.prompt, *widest.key.generated]
        for position, _ in widest.fills:
            ids[position] = mask
        ids += [mask] * (stop - len(ids))
        ids[anchor.start : anchor.start + len(anchor.canvas)] = anchor.canvas
        return tuple(ids[start:stop])

    @staticmethod
    def _branch(draft: Draft, start: int, bitmasks: dict[bytes, int]) -> Branch:
        """A draft as a branch of a plan whose rows begin at `start`: what the draft's plan reads from the cache after
        that, the branch computes and stages."""
        plan = draft.plan
        branch = plan.branches[0]
        segments, to_stage = branch.segments, branch.to_stage
        if plan.start > start:
            segments = draft.base.lane_segments(start)
            to_stage = (range(start, to_stage[-1].stop if to_stage else plan.start),)
        scoring = branch.scoring
        if isinstance(scoring, ChooseTokens) and scoring.bitmask_ids:
            ids = tuple(
                bitmasks.setdefault(plan.token_bitmasks[index], len(bitmasks)) if index >= 0 else -1
                for index in scoring.bitmask_ids
            )
            scoring = replace(scoring, bitmask_ids=ids)
        fills = tuple(sorted(draft.fills))
        return replace(
            branch,
            segments=segments,
            fills=fills,
            to_stage=to_stage,
            scoring=scoring,
            start=min(plan.start, start),
        )

    # Verification

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        for index, (draft, report) in enumerate(zip(self._drafts, reports, strict=True)):
            if not np.isnan(report.scores).any():
                self._states.add(EvaluatedState(draft.key, report, draft.fills, branch=index))
        state = self._states.get(self._drafts[0].key)
        assert state is not None
        self._drafts = []
        rule_steps: list[RuleStep] = []
        winner = 0
        commit: Commit | None = None
        while True:
            filled = self._decide(state)
            rule_steps.append(RuleStep(state.branch, tuple(filled)))
            winner = winner if state.branch is None else state.branch
            if self._rule.plan().branches[0].to_stage:
                assert state.branch is not None
                commit = plan.commit_of(state.branch)
            fills = [decision.fill for decision in filled]
            self._rule.finish_rule_step(fills)
            self._states.move(fills)
            following, is_behind_caching = self._next_state()
            if following is None:
                break
            state = following
            if is_behind_caching:
                assert state.branch is not None
                rule_steps.append(RuleStep(None, ()))
                commit = plan.commit_of(state.branch)
        self._commit = commit
        positions = {decision.position for rule_step in rule_steps for decision in rule_step.filled}
        committed = commit is not None and not self._rule.exact_cache
        self._states.forget(positions, state, committed=committed)
        return StepOutcome(
            step=plan.step,
            winner=winner,
            confidences=tuple(map(_mean_score, reports)),
            adopted=(),
            rule_steps=tuple(rule_steps),
            canvas=tuple(self.generated),
            blocks=self._rule.block_views(),
            commit=commit,
        )

    def _decide(self, state: EvaluatedState) -> list[Decision]:
        """The rule's fills by a report, and under relaxed acceptance the further tokens of a branch."""
        filled = self._rule.choose_planned(state.scores)
        if self.settings.acceptance != "exact":
            filled += self._relaxed(filled, state.scores, self.settings.acceptance)
        return filled

    def _relaxed(self, filled: Sequence[Decision], scores: Scores, acceptance: float) -> list[Decision]:
        """The further tokens of the branch with the highest mean score (the first of equals) that holds all that the
        rule fills, and else only the report's own choices with a probability above `acceptance`."""
        fills = frozenset(decision.fill for decision in filled)
        candidates: list[tuple[float, list[Decision], EvaluatedState]] = []
        for candidate in self._states:
            if candidate.behind or candidate.key is None or not fills <= candidate.ahead:
                continue
            further = sorted(candidate.ahead - fills)
            if all(_is_sure(scores.get(position), token, acceptance) for position, token in further):
                decisions = [scores[position].decision for position, _ in further]
                candidates.append((_mean_score(candidate.report), decisions, candidate))
        for _, further_decisions, candidate in sorted(candidates, key=lambda item: -item[0]):
            further_fills = [decision.fill for decision in further_decisions]
            if self._rule.allows(further_fills):
                after = self._rule.after([*fills, *further_fills])
                if not after.finished and self._standing_for(after) is candidate:
                    return further_decisions
        return []

    def _next_state(self) -> tuple[EvaluatedState | None, bool]:
        """The evaluated state that the rule is in now; None if the forward has none, or the request ends. True if a
        caching-only step comes first and an evaluated branch has already computed its rows."""
        rule = self._rule
        if rule.finished or rule.steps >= rule.step_limit:
            return None, False
        state = self._standing_for(rule)
        if state is None and rule.exact_cache and not rule.scored_masks():
            after = rule.after(())
            if not after.finished and after.steps < after.step_limit:
                state = self._standing_for(after)
                if state is not None and state.branch is not None:
                    self._rule = after
                    return state, True
            return None, False
        return state, False

    def _standing_for(self, rule: FillingSession[Any]) -> EvaluatedState | None:
        """The evaluated state whose report the rule's planned step would have. The step may read no uncommitted K/V,
        unless its branch has computed them along; if it stages K/V, they must be here to be committed."""
        plan = rule.plan()
        state = self._states.get(StateKey.of(rule.generated, plan))
        if state is None or (not rule.exact_cache and plan.commit is not None):
            return None
        return state if state.branch is not None or not plan.branches[0].to_stage else None

    # State

    def _check_scores(self, plan: Plan, reports: Sequence[BranchReport]) -> None:
        """A draft without scores is no draft; one branch would not have computed it."""
        super()._check_scores(plan, reports[:1])

    def use_weights(self, version: int) -> None:
        if version != self._weight_version:
            self._states.distrust()
        super().use_weights(version)

    def export_state(self) -> bytes:
        names = ("steps", "forwards", "finish_reason", "_commit", "_states", "_weight_version")
        return pickle.dumps((self._rule.export_state(), {name: getattr(self, name) for name in names}))

    def with_state(self, state: bytes, replay: Sequence[ScheduledRequest]) -> Self:
        of_rule, own = pickle.loads(state)
        session = super().with_state(pickle.dumps(own), replay)
        session._rule = self._rule.with_state(of_rule, ())
        session._drafts = []
        return session


def _is_sure(score: PositionScore | None, token: int, acceptance: float) -> bool:
    return score is not None and score.decision.token == token and score.probability > acceptance


def _mean_score(report: BranchReport) -> float:
    """The mean score at masked positions, for traces, and the criterion of relaxed acceptance."""
    return float(report.scores.mean()) if len(report.scores) else NO_MASKS_CONFIDENCE
