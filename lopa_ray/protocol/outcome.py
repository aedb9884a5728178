"""StepOutcome: a step's decisions for one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lopa_ray.protocol.plan import Commit, Fill

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block after a step; `state` is "active", "to_cache" or "in_cache"."""

    start: int
    stop: int
    state: str
    masks: int
    complete: bool


class Draw(NamedTuple):
    """What a pass drew at a position, and the distribution that it drew from: the softmax at the request's temperature
    (1 where that is 0), after penalties and biases, top-p and top-k, over the tokens that may stand there."""

    token: int
    logprob: float
    entropy: float  # in nats


@dataclass(frozen=True, slots=True)
class Decision:
    """One position with the token that it got, and the scores of that token in the pass that chose it. Of several
    decisions on one position the last one holds: the others were edited away (see `StepOutcome.editable`)."""

    position: int
    token: int
    probability: float
    """The token's probability after temperature, top-p and top-k."""
    logprob: float
    """Log-probability under the plain softmax, like `top_logprobs`."""
    top_logprobs: tuple[tuple[int, float], ...]
    """The most likely (token, log-probability); empty unless asked for."""
    draw: Draw | None = None
    """The draw in the pass that chose the token, if `SamplingParams.draws` asks for it; of a rule that puts in another
    token, not the draw of this token."""

    @property
    def fill(self) -> Fill:
        return self.position, self.token


@dataclass(frozen=True, slots=True)
class Shift:
    """What insertions and deletions have done, before the fills."""

    moves: tuple[tuple[int | None, int], ...] = ()
    """Where content was (None: it is a new mask) and where it is. Content that moves nowhere is lost."""
    inserted: tuple[int, ...] = ()  # those of the new masks that came between others
    deletions: tuple[int, ...] = ()  # positions before which tokens were deleted


@dataclass(frozen=True, slots=True)
class RuleStep:
    """The decisions of one step of the unmasking rule. With verified lookahead a step may have several."""

    branch: int | None  # whose report the rule took; None: a report that an earlier step brought, or none
    filled: tuple[Decision, ...]  # in the order of filling
    shift: Shift = field(default_factory=Shift)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step's decisions for one request. A trace takes them and the step's plan, and nothing else."""

    step: int
    winner: int
    """The branch from whose canvas the request goes on; with verified lookahead the last accepted one."""
    confidences: tuple[float, ...]
    """Branch confidence per evaluated branch; for a `LikelihoodSession` what each branch adds to the bound."""
    adopted: tuple[Decision, ...] = ()
    """The winner's fill set beyond the anchor's, chosen by the pass before."""
    rule_steps: tuple[RuleStep, ...] = ()
    canvas: tuple[int, ...] = ()
    """Ids after the prompt, masks included, as they now stand."""
    blocks: tuple[BlockView, ...] = ()
    candidate_logprobs: tuple[tuple[float, ...], ...] = ()
    """Log-probabilities of each branch's candidates in a `DecisionSession`, in nats; empty for others."""
    commit: Commit | None = None
    """The commit that the next step carries out."""
    editable: range = range(0)
    """Positions whose tokens later steps may replace. All other tokens are final once they are decided."""
    finish_reason: FinishReason | None = None
    weight_version: int = 0  # of the weights that computed the step
    considered: tuple[Decision, ...] = ()
    """If `top_logprobs` are asked for: what the winner's report chooses at each position that it scores, decided or
    not."""

    @property
    def filled(self) -> tuple[Decision, ...]:
        """The decisions that the unmasking rule filled from this step's scores."""
        return tuple(decision for rule_step in self.rule_steps for decision in rule_step.filled)

    @property
    def fills(self) -> tuple[Fill, ...]:
        return tuple(decision.fill for decision in self.filled)
