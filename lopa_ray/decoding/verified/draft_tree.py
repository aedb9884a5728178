"""Drafts: states that the rule will probably reach, found by a best-first search over its fill sets. A path's
probability is the product of its fill sets' (Spiffy, arXiv 2509.18085, builds its draft graph from such estimates;
FreeDave, arXiv 2510.00294, verifies drafts of the model itself)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.verified.evaluated_state import EvaluatedState, EvaluatedStates, StateKey
from lopa_ray.decoding.verified.fill_model import FillModel, FillSet
from lopa_ray.protocol.plan import Fill, Plan

EXPANDED_SHARE = 1.0  # children are looked at if the state's probability exceeds this ÷ the number of drafts

MIN_DRAFT_PER_ROW = 5e-5
"""A state whose probability is below this × the rows of its branch is no draft: it would cost more than it saves."""

TYPICAL_PROBABILITY = 0.8
"""Of the drafts that auto takes so many are right. Where a draft with this probability is not worth its time, none is
looked for, because the search takes time too."""

STALE_PROBABILITY = 0.9  # of the fill set that another rule would choose by a report from before the state


@dataclass(slots=True)
class Draft:
    """A state of the unmasking rule, with its planned step of one branch."""

    fills: frozenset[Fill]  # tokens that it has beyond the current state
    probability: float
    plan: Plan  # of one branch in this state, or one that differs in tokens and its number alone
    key: StateKey
    base: FillingSession[Any]  # a session whose planned step has the same window
    beyond: tuple[Fill, ...]  # tokens that the state has beyond the state of `base`
    calls: int  # of the rule, from the state of `base` to this one
    make_session: Callable[[], FillingSession[Any]]
    planned: FillingSession[Any] | None = None  # the session in this state, once `make_session` has made it

    @classmethod
    def of(cls, session: FillingSession[Any], fills: frozenset[Fill], probability: float) -> Self:
        plan = session.plan()
        key = StateKey.of(session.generated, plan)
        return cls(fills, probability, plan, key, session, (), 0, lambda: session, session)

    @property
    def session(self) -> FillingSession[Any]:
        """The rule in this state, with its step planned."""
        if self.planned is None:
            self.planned = self.make_session()
            self.planned.plan()
        return self.planned

    def after(self, fills: Sequence[Fill], all_fills: frozenset[Fill], probability: float) -> Draft | None:
        """The next state that scores positions, if the rule fills these here; None if there is none. If the window does
        not change, no session is copied. A wrong guess only wastes the branch."""
        base, beyond = self.base, (*self.beyond, *fills)
        answer = base.answer_in_window(beyond)
        if answer is not None:
            key, calls = StateKey(answer, self.key.inputs), self.calls + 1
            return Draft(
                all_fills, probability, self.plan, key, base, beyond, calls, lambda: self.session.after(fills)
            )
        session = self.session
        if not session.allows(fills):
            return None
        following = _scoring_state(session.after(fills))
        return None if following is None else Draft.of(following, all_fills, probability)


class DraftTree:
    def __init__(self, settings: GenerationSettings) -> None:
        self._settings = settings
        self._model: FillModel | None = FillModel.load(settings.ranking)

    def __reduce__(self) -> tuple[Any, ...]:
        return DraftTree, (self._settings,)

    def drafts(self, current: Draft, states: EvaluatedStates, budget: CostBudget) -> list[Draft]:
        """The states that are reached from the current one with the highest probabilities, as long as the budget wants
        them; it takes each. None is evaluated already, and each fits into the forward of the current one."""
        most = budget.most - 1
        least = MIN_DRAFT_PER_ROW * current.plan.max_branch_rows
        drafts: list[Draft] = []
        heap: list[tuple[float, int, Draft, tuple[Fill, ...]]] = []
        order = count()
        seen = {current.fills}
        keys = {current.key}

        def expand(draft: Draft) -> None:
            for probability, fills in self._fill_sets(draft, states, most + 1):
                heapq.heappush(heap, (-probability * draft.probability, next(order), draft, fills))

        if not budget.wants(TYPICAL_PROBABILITY) or not can_follow(current):
            return []
        expand(current)
        while heap:
            probability, _, parent, fills = heapq.heappop(heap)
            if -probability < least or not budget.wants(-probability):
                break
            all_fills = parent.fills.union(fills)
            if fills and all_fills in seen:
                continue
            seen.add(all_fills)
            draft = parent.after(fills, all_fills, -probability)
            if draft is None or not fits(current, draft):
                continue
            if states.get(draft.key) is None and draft.key not in keys:
                keys.add(draft.key)
                drafts.append(draft)
                budget.take(-probability)
            pays = -probability > EXPANDED_SHARE / most and budget.wants(-probability)
            if pays and can_follow(draft):
                expand(draft)
        return drafts

    def _fill_sets(self, draft: Draft, states: EvaluatedStates, most: int) -> list[FillSet]:
        evaluated = states.get(draft.key)
        if evaluated is not None:
            return [(1.0, tuple(decision.fill for decision in draft.session.peek(evaluated.scores)))]
        source = states.nearest(draft.fills)
        if source is None:
            return []
        blocks = draft.base.rule_blocks(draft.beyond, draft.calls)
        if blocks is None or self._model is None:
            return self._stale_fill_sets(draft.session, source)
        beyond = source.behind.union(position for position, _ in draft.fills - source.ahead)
        sets = self._model.fill_sets(blocks, source, beyond, most)
        has_holes = bool(draft.base.given.holes)
        return [(p, draft.session.with_ends(fills)) for p, fills in sets] if has_holes else sets

    @staticmethod
    def _stale_fill_sets(session: FillingSession[Any], source: EvaluatedState) -> list[FillSet]:
        """The fill sets of a rule that counts or draws, by a report from before the state."""
        masked = session.scored_masks()
        if not masked or not all(position in source.scores for position in masked):
            return []
        scores = {position: source.scores[position] for position in masked}
        return [(STALE_PROBABILITY, tuple(decision.fill for decision in session.peek(scores)))]


def can_follow(draft: Draft) -> bool:
    """Whether a state after this one may be evaluated in the same forward: no other branch sees what a step stages,
    unless its rows may be computed along."""
    return draft.base.exact_cache or not draft.plan.branches[0].to_stage


def fits(current: Draft, draft: Draft) -> bool:
    """Whether a branch of the current state's forward can have the inputs of the draft's plan."""
    plan, draft_plan = current.plan, draft.plan
    if plan is draft_plan:
        return True
    if current.base.exact_cache:
        return draft_plan.start >= plan.start
    same_cache = (draft_plan.start, draft_plan.cached) == (plan.start, plan.cached)
    return draft_plan.commit is None and (same_cache or not draft_plan.cached)


def _scoring_state(session: FillingSession[Any]) -> FillingSession[Any] | None:
    """The first state from this one on that scores positions; None if the request ends before it."""
    while not session.finished and session.steps < session.step_limit:
        if not session.exact_cache or session.scored_masks():
            return session
        session = session.after(())
    return None
