"""TraceStep: a step of a request as traces show it, made of its plan and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from lopa_ray.protocol.outcome import BlockView, Decision, Shift, StepOutcome
from lopa_ray.protocol.plan import Fill, Plan

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class TraceBranch:
    """One evaluated branch: its fill set beyond the anchor's, its end, its branch confidence."""

    fills: tuple[Fill, ...]
    stop: int
    confidence: float


@dataclass(frozen=True, slots=True)
class TraceRuleStep:
    """One application of the unmasking rule; a step of verified lookahead may have several."""

    branch: int | None
    """Index of the branch whose report the rule took; None: a report that an earlier step brought, or none."""
    fills: tuple[Fill, ...]
    shift: Shift = field(default_factory=Shift)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a request. Positions are absolute."""

    step: int
    branches: tuple[TraceBranch, ...]
    winner: int
    """Index of the branch that the request goes on from; with verified lookahead the last accepted draft, or the
    anchor."""
    fills: tuple[Fill, ...]
    """Filled or edited beyond the fill set that the winner of a comparison was evaluated with: the fills of
    `rule_steps`."""
    rule_steps: tuple[TraceRuleStep, ...]
    """The fills of the unmasking rule, step by step."""
    decided: tuple[Decision, ...]
    """The decisions of the step, with probabilities: the fill set of the winner of a comparison, then `fills`."""
    input_start: int
    cached: int
    """Cached positions that the step read."""
    kept: int
    """Positions whose K/V the step staged for the cache."""
    blocks: tuple[BlockView, ...]
    canvas: tuple[int, ...]
    """Ids after the prompt as they stood after the step."""

    @property
    def depth(self) -> int:
        return len(self.rule_steps)

    @property
    def accepted(self) -> tuple[int, ...]:
        """Indices of the drafts whose reports the rule took after the report of the first branch, in this order."""
        taken = (rule_step.branch for rule_step in self.rule_steps)
        return tuple(dict.fromkeys(branch for branch in taken if branch is not None))[1:]

    def update(self, entries: dict[int, Entry], new: Callable[[int, Decision], Entry]) -> None:
        """Bring up to date what belongs to each decided position: `new` of each decision and of the number of its
        rule step in this step, or of 0 if the pass before chose it; the others move as their tokens do."""
        decided = iter(self.decided)
        for decision in islice(decided, len(self.decided) - len(self.fills)):
            entries[decision.position] = new(0, decision)
        for number, rule_step in enumerate(self.rule_steps, 1):
            moves = rule_step.shift.moves
            moved = {target: entries[source] for source, target in moves if source in entries}
            for _, target in moves:
                entries.pop(target, None)
            entries |= moved
            for decision in islice(decided, len(rule_step.fills)):
                entries[decision.position] = new(number, decision)

    def branch_name(self, index: int) -> str:
        """ "anchor", or "+3" for the third branch next to it: a fork, or with verified lookahead a draft."""
        if not self.branches[index].fills:
            return "anchor"
        return f"+{sum(bool(branch.fills) for branch in self.branches[: index + 1])}"


def trace_step(plan: Plan, outcome: StepOutcome) -> TraceStep:
    branches = zip(plan.branches, outcome.confidences, strict=True)
    return TraceStep(
        step=outcome.step,
        branches=tuple(TraceBranch(branch.fills, branch.stop, confidence) for branch, confidence in branches),
        winner=outcome.winner,
        fills=outcome.fills,
        rule_steps=tuple(
            TraceRuleStep(step.branch, tuple(decision.fill for decision in step.filled), step.shift)
            for step in outcome.rule_steps
        ),
        decided=outcome.adopted + outcome.filled,
        input_start=plan.start,
        cached=sum(map(len, plan.cached)),
        kept=0 if outcome.commit is None else sum(map(len, outcome.commit.spans)),
        blocks=outcome.blocks,
        canvas=outcome.canvas,
    )
