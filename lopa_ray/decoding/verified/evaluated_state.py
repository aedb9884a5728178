"""EvaluatedState: a state of the canvas that a forward has scored, seen from the request's current state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from lopa_ray.decoding.branching import Scores, scores_by_position
from lopa_ray.protocol.plan import Fill, Plan
from lopa_ray.protocol.step_report import BranchReport


class StateKey(NamedTuple):
    """All inputs of a forward of one branch, but for the prompt and the K/V of committed steps: with the same key a
    forward has the same report until K/V are committed, and also after that under `FillingSession.exact_cache`."""

    generated: tuple[int, ...]
    inputs: Plan
    """The planned step of one branch without its canvas, which `generated` has, and without its number, its commit and
    what it stages, on which no report depends."""

    def __hash__(self) -> int:
        # States of a request mostly differ in their tokens, and a plan takes long to hash.
        return hash(self.generated)

    @classmethod
    def of(cls, generated: Iterable[int], plan: Plan) -> Self:
        branch = replace(plan.branches[0], to_stage=())
        inputs = replace(plan, step=0, canvas=(), branches=(branch,), commit=None, stage_shared=False)
        return cls(tuple(generated), inputs)


@dataclass(eq=False)
class EvaluatedState:
    """A state that was evaluated: its report, and how it differs from the current state."""

    key: (
        StateKey | None
    )  # None: K/V were committed or weights changed since then: the report is no longer certain
    report: BranchReport
    ahead: frozenset[Fill]  # tokens that it has and the current state lacks
    behind: frozenset[int] = frozenset()  # positions decided in the current state and masked in it
    branch: int | None = None  # its branch in the current step; None: an earlier step has scored it
    cached_features: Any = field(default=None, repr=False)  # see `FillModel`

    @cached_property
    def scores(self) -> Scores:
        return scores_by_position(self.report)

    def __reduce__(self) -> tuple[Any, ...]:
        return EvaluatedState, (self.key, self.report, self.ahead, self.behind, self.branch)


class EvaluatedStates:
    """The evaluated states of a request that still say something about states to come."""

    def __init__(self, most: int) -> None:
        """At most `most` states are kept from step to step, the latest."""
        self._most = most
        self._states: list[EvaluatedState] = []
        self._by_key: dict[StateKey, EvaluatedState] = {}

    def __iter__(self) -> Iterator[EvaluatedState]:
        return iter(self._states)

    def add(self, state: EvaluatedState) -> None:
        self._states.append(state)
        if state.key is not None:
            self._by_key[state.key] = state

    def get(self, key: StateKey) -> EvaluatedState | None:
        return self._by_key.get(key)

    def nearest(self, fills: frozenset[Fill]) -> EvaluatedState | None:
        """The state within the current state and `fills` that lacks the fewest of its tokens."""
        nearest, least = None, 0
        for state in self._states:
            if state.ahead <= fills:
                lacking = len(fills) - len(state.ahead) + len(state.behind)
                if nearest is None or lacking < least:
                    nearest, least = state, lacking
        return nearest

    def move(self, fills: Iterable[Fill]) -> None:
        filled = frozenset(fills)
        for state in self._states:
            new = filled - state.ahead
            state.ahead = state.ahead - filled
            if new:
                state.behind = state.behind.union(position for position, _ in new)

    def distrust(self) -> None:
        """No report so far is certain any more."""
        self._by_key = {}
        for state in self._states:
            state.key = None

    def forget(self, positions: set[int], last: EvaluatedState, *, committed: bool) -> None:
        """Drop, at the end of a step, states that have another token at one of the `positions` that the step has
        filled, and states that the last one contains. After a commit on which reports depend no report stands; the last
        one is kept as a guess."""
        kept = []
        for state in self._states:
            state.branch = None
            if committed:
                state.key = None
            is_ahead = not committed and bool(state.ahead)
            if state is last or (is_ahead and all(position not in positions for position, _ in state.ahead)):
                kept.append(state)
        self._states = kept[-self._most :]
        self._by_key = {state.key: state for state in self._states if state.key is not None}
