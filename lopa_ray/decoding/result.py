"""Makes an answer from a canvas, and a result with its trace from plans and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from lopa_ray.decoding.given_tokens import final_part, length_through_end
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trajectory import Trajectory, TrajectoryBuilder
from lopa_ray.protocol.outcome import BlockView, Decision, FinishReason, Move, StepOutcome
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
    moves: tuple[Move, ...] = ()
    """Tokens that moved before the fills."""

    @property
    def deletions(self) -> tuple[int, ...]:
        """Positions before which tokens were deleted."""
        source_of: dict[int, int | None] = {target: source for source, target in self.moves}

        def is_after_gap(source: int | None, target: int) -> bool:
            before = source_of.get(target - 1, target - 1)
            return source is not None and before is not None and source - before > 1

        return tuple(move.target for move in self.moves if is_after_gap(*move))


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
            moved = {target: entries[source] for source, target in rule_step.moves if source in entries}
            for _, target in rule_step.moves:
                entries.pop(target, None)
            entries |= moved
            for decision in islice(decided, len(rule_step.fills)):
                entries[decision.position] = new(number, decision)

    def branch_name(self, index: int) -> str:
        """ "anchor", or "+3" for the third branch next to it: a fork, or with verified lookahead a draft."""
        if not self.branches[index].fills:
            return "anchor"
        return f"+{sum(bool(branch.fills) for branch in self.branches[: index + 1])}"


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished request."""

    token_ids: list[int]
    text: str | None
    """Decoded up to the first EOS; None without a tokenizer. With given parts they are in it, with a suffix it is what
    stands before that."""
    finish_reason: FinishReason
    tokens: int
    """Tokens up to and including the first that ends the answer (all of them if none does). Given tokens do not
    count, and of a hole the tokens up to and including its end."""
    steps: int
    """Forward rounds (the published decoders report one more)."""
    forwards: int
    """Branch evaluations, over all steps."""
    rule_steps: int
    """Steps of the unmasking rule: as many as `steps`, or more with verified lookahead."""
    seconds: float
    """Wall-clock time from submission to the last step."""
    prompt_tokens: int
    """Tokens of the prompt, and tokens that the request gives of its answer."""
    trace: tuple[TraceStep, ...] = ()
    trajectory: Trajectory | None = None
    """How the answer came about, with the setting `trajectory`."""

    @property
    def tpf(self) -> float:
        """Tokens per forward: `tokens` ÷ `steps`."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def mean_depth(self) -> float:
        """Denoising steps per step: `rule_steps` ÷ `steps`."""
        return self.rule_steps / self.steps if self.steps else 0.0

    @property
    def tps(self) -> float:
        """Tokens per second of this request."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class ResultBuilder:
    """Makes the result of one request's steps, on either side of a process border."""

    def __init__(self, session: DecodeSession, with_trace: bool = False) -> None:
        self._session, self._given, self._end_token_ids = session, session.given, session.end_token_ids
        self._with_trace = with_trace
        self._trace: list[TraceStep] = []
        self._trajectory = TrajectoryBuilder(session) if session.settings.trajectory else None
        self.steps = self.forwards = self.rule_steps = 0
        self.canvas: tuple[int, ...] = ()
        self.final_canvas: Sequence[int] = ()
        """The beginning of the canvas whose decided tokens no later step edits."""
        self.finish_reason: FinishReason | None = None if session.settings.max_new_tokens else "length"

    def add_step(self, plan: Plan, outcome: StepOutcome) -> TraceStep:
        self.steps += 1
        self.forwards += len(plan.branches)
        self.rule_steps += len(outcome.rule_steps)
        self.canvas = outcome.canvas
        self.final_canvas = final_part(outcome.canvas, outcome.editable, len(self._session.prompt))
        self.finish_reason = outcome.finish_reason
        step = trace_step(plan, outcome)
        if self._trajectory is not None:
            self._trajectory.add_step(plan, step)
        if self._with_trace:
            self._trace.append(step)
        return step

    @property
    def returned_canvas(self) -> Sequence[int]:
        """The part of `final_canvas` that is returned, up to its first end. See `GivenTokens.returned_text`."""
        return self._given.returned_text(self.final_canvas, self._end_token_ids)

    def num_generated(self, text_tokens: int) -> int:
        """Tokens that were generated up to the last of the first `text_tokens` of `returned_canvas`."""
        return self._given.num_generated(self.final_canvas, self._end_token_ids, text_tokens)

    @property
    def text_token_ids(self) -> list[int]:
        """The ids that make up the text: all before the first end."""
        text = self._given.returned_text(self.canvas, self._end_token_ids)
        length = length_through_end(text, self._end_token_ids)
        return list(text if length is None else text[: length - 1])

    def trajectory(self, num_tokens: int) -> Trajectory | None:
        """The trajectory of an answer of which so many tokens are returned, if the settings ask for it."""
        if self._trajectory is None:
            return None
        ends = self._end_token_ids
        offsets = self._given.returned_offsets(self.canvas, ends)[:num_tokens]
        length = length_through_end([self.canvas[at] for at in offsets], ends)
        stop = offsets[: length or num_tokens]
        return self._trajectory.build(self.canvas, offsets, stop[-1] + 1 if stop else 0)

    def build(self, text: str | None, seconds: float) -> GenerationResult:
        """The finished request. Raises ValueError before the last step."""
        if self.finish_reason is None:
            raise ValueError("the request is not finished")
        ends, given = self._end_token_ids, self._given
        returned = given.returned_text(self.canvas, ends)
        stop = length_through_end(returned, ends) if self._session.settings.stop_at_eos else None
        token_ids = list(returned[:stop])
        return GenerationResult(
            token_ids=token_ids,
            text=text,
            finish_reason=self.finish_reason,
            tokens=given.num_generated(self.canvas, ends),
            steps=self.steps,
            forwards=self.forwards,
            rule_steps=self.rule_steps,
            seconds=seconds,
            prompt_tokens=len(self._session.prompt) + len(given),
            trace=tuple(self._trace),
            trajectory=self.trajectory(len(token_ids)),
        )


def trace_step(plan: Plan, outcome: StepOutcome) -> TraceStep:
    branches = zip(plan.branches, outcome.confidences, strict=True)
    return TraceStep(
        step=outcome.step,
        branches=tuple(TraceBranch(branch.fills, branch.stop, confidence) for branch, confidence in branches),
        winner=outcome.winner,
        fills=outcome.fills,
        rule_steps=tuple(
            TraceRuleStep(
                rule_step.branch, tuple(decision.fill for decision in rule_step.filled), rule_step.moves
            )
            for rule_step in outcome.rule_steps
        ),
        decided=outcome.adopted + outcome.filled,
        input_start=plan.start,
        cached=sum(map(len, plan.cached)),
        kept=0 if outcome.commit is None else sum(map(len, outcome.commit.spans)),
        blocks=outcome.blocks,
        canvas=outcome.canvas,
    )
