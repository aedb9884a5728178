"""The messages of a step: frozen, picklable, free of torch.

A `Plan` says what one request wants evaluated in one step and how: which canvas, which
branches of it, what each row may see, what is read from the cache and what is to be kept.
A `BranchReport` answers for one branch. Every decoder speaks in these two words, so
neither the runner nor the actors know which decoder is running.

Positions are absolute (the prompt starts at 0); spans are `range`s of positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Ranking = Literal["probability", "margin", "neg_entropy"]
"""Which score ranks positions: the probability of the chosen token, the gap between the
two best, or the sum of p ln p over the vocabulary."""

Fill: TypeAlias = tuple[int, int]
"""(absolute position, token id)."""

Spans: TypeAlias = tuple[range, ...]

Segment: TypeAlias = tuple[int, int]
"""(stop, sees): input rows up to position `stop` (from where the segment before ended)
attend to all positions in [0, sees)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token follows from a row of logits.

    Each draw is keyed by (seed, step, position) and nothing else, so it is the same on
    whichever worker a branch runs, and the same for all branches of a step.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    top_k_first: bool = False
    """Apply top_k before top_p, not after it."""
    confidence_temperature: float | None = None
    """Probabilities and scores are those of softmax(logits ÷ this); None: of what tokens are drawn from."""
    precision: Literal["float16", "float32", "float64"] = "float32"
    """In which probabilities and scores are computed; float16: from logits rounded to it, in fp32."""
    ranking: Ranking = "probability"
    no_eos_before: int = 0
    """Positions below this one never get a token that ends the answer (`min_tokens`)."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end it, beside EOS; here only if `no_eos_before` has a use for them."""
    top_logprobs: int = 0
    """How many of the most likely tokens each report lists per position."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One candidate: the plan's canvas up to the last segment's stop, plus a fill set."""

    segments: tuple[Segment, ...]
    fills: tuple[Fill, ...] = ()
    bitmask_ids: tuple[int, ...] = ()
    """Under a constraint: for each position from the start of `Plan.scored` on, the index in
    `Plan.token_bitmasks` of the tokens that it may get (-1 if it is no mask). Without one: empty."""

    @property
    def stop(self) -> int:
        """End (exclusive) of the branch's canvas."""
        return self.segments[-1][0]


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes what a branch of an earlier step staged part of the cache; its id is `step`.

    Under the two-phase protocol the K/V of `branch` is broadcast and written everywhere.
    Where `shared` is true (single phase) all branches staged the same K/V, each worker
    commits its own, and nothing is sent.
    """

    step: int
    branch: int
    spans: Spans
    shared: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one request wants of one step."""

    epoch: int
    step: int
    start: int
    """First input position; the same for all branches."""
    canvas: tuple[int, ...]
    """Token ids from `start` to the end of the longest branch."""
    branches: tuple[Branch, ...]
    cached: Spans
    """Positions whose cached K/V this step reads; all other cached spans are dropped."""
    scored: range
    """Masked positions in here are scored."""
    to_stage: Spans = ()
    """Input positions whose K/V each branch stages, for a later commit of the winner."""
    stage_shared: bool = False
    """The staged K/V is the same on every branch (single phase)."""
    commit: Commit | None = None
    """Carried out before the step's forward."""
    sampling: SamplingParams = SamplingParams()
    token_bitmasks: tuple[bytes, ...] = ()
    """Sets of tokens under a constraint; see `lopa_ray.constraints.constraint.unpack_bitmask`."""

    def token_bitmask(self, branch: Branch, position: int) -> bytes | None:
        """The tokens that a masked position may get; None: any."""
        if not branch.bitmask_ids:
            return None
        return self.token_bitmasks[branch.bitmask_ids[position - self.scored.start]]

    def input_ids(self, branch: Branch) -> list[int]:
        """Token ids from `start` to the branch's stop, with its fill set put in."""
        ids = list(self.canvas[: branch.stop - self.start])
        for position, token in branch.fills:
            ids[position - self.start] = token
        return ids


@dataclass(frozen=True, slots=True, eq=False)
class BranchReport:
    """Scores of one branch's masked positions, ascending by position.

    `positions` and `tokens` are int32 [n], `probabilities` (of the chosen token, after
    temperature, top-p and top-k) and `scores` (by the plan's ranking) float64 [n], `logprobs`
    (of the chosen token, plain softmax) float32 [n]. `top_tokens` int32 [n, m] and
    `top_logprobs` float32 [n, m] are the m most likely tokens of the plain softmax, most
    likely first (m = 0 unless asked for).
    """

    epoch: int
    step: int
    branch: int
    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    logprobs: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float64]
    top_tokens: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block after a step; `state` is "active", "to_cache" or "in_cache"."""

    start: int
    stop: int
    state: str
    masks: int
    complete: bool


FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One decided position, and what the pass that chose its token said of it."""

    position: int
    token: int
    probability: float
    """After temperature, top-p and top-k."""
    logprob: float
    """Of the plain softmax, like `top_logprobs`."""
    top_logprobs: tuple[tuple[int, float], ...]
    """The most likely (token, log-probability); empty unless asked for."""

    @property
    def fill(self) -> Fill:
        """Position and token."""
        return self.position, self.token


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step decided. With the step's plan it is all that a trace needs."""

    step: int
    winner: int
    confidences: tuple[float, ...]
    """Branch confidence per evaluated branch."""
    adopted: tuple[Decision, ...]
    """The winner's fill set beyond the anchor's, chosen by the pass before."""
    filled: tuple[Decision, ...]
    """Filled on the winner from this step's scores."""
    canvas: tuple[int, ...]
    """Ids after the prompt, masks included, as they now stand."""
    blocks: tuple[BlockView, ...]
    finish_reason: FinishReason | None = None

    @property
    def fills(self) -> tuple[Fill, ...]:
        """Position and token of what was filled from this step's scores."""
        return tuple(decision.fill for decision in self.filled)


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """K/V of a prompt's positions that workers keep for other requests; see `PrefixIndex`."""

    id: int
    span: range


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step on one worker."""

    request_id: int
    slot: int
    plan: Plan
    branches: tuple[int, ...]
    """Indices of the plan's branches that this worker evaluates."""
    source: int | None = None
    """Rank of the worker that holds the winner's staged K/V; None: every worker its own."""
    prefix: tuple[StoredPrefix, ...] = ()
    """K/V that are there already, from position 0 on: the rows of these positions are not computed."""
    store: StoredPrefix | None = None
    """What of the plan's commit is to be kept for other requests."""

    @property
    def start(self) -> int:
        """First position whose row is computed."""
        return self.prefix[-1].span.stop if self.prefix else self.plan.start


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One worker's part of one step: all requests in flight, in the same order everywhere."""

    epoch: int
    step: int
    requests: tuple[ScheduledRequest, ...]
    forget: tuple[int, ...] = ()
    """Ids of stored K/V that are to be forgotten, before anything else."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """A worker's answer: the reports of its branches, keyed by request id."""

    epoch: int
    step: int
    reports: tuple[tuple[int, BranchReport], ...]
    commit_s: float = 0.0
    """Seconds that the worker spent on commits, waiting for K/V included."""
    forward_s: float = 0.0
    """Seconds that it spent on the forward, staging and scores."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Where the time of one step of a group went, in seconds; the workers' parts are the slowest one's."""

    plan: float
    scatter: float
    commit: float
    forward: float
    gather: float
    """Waiting for reports beyond the slowest worker's own work: messages and queues."""
    select: float
