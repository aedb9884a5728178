"""Plan: the evaluations of one request in one step. StepPlan: all requests of a step, for one worker.

A `Plan` says which canvas, which branches of it, what each row may attend to, what is read from the cache and what is
staged for it. A `BranchReport` answers for one branch. So neither the runner nor the actors depend on the decoder.

Positions are absolute (the prompt starts at 0); spans are `range`s of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from lopa_ray.protocol.logit_changes import LogitChanges
from lopa_ray.protocol.plan_inputs import PlanInputs
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import CHOOSE, ChooseTokens, ScoreCandidates, Scoring

Fill: TypeAlias = tuple[int, int]  # (absolute position, token id)

Spans: TypeAlias = tuple[range, ...]

Segment: TypeAlias = tuple[int, int]
"""(stop, kv_stop): input rows up to `stop`, from where the segment before ended, attend to all of [0, kv_stop)."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One candidate: the plan's canvas up to the last segment's stop, plus a fill set."""

    segments: tuple[Segment, ...]
    scored: range
    """Masked positions in here are scored; with `Plan.scores_decided` all of them. If all rows are causal, it may have
    the position behind the last one too, which needs no row to be decided."""
    fills: tuple[Fill, ...] = ()
    fill_weights: tuple[float, ...] = ()  # the weight of each of `fills`, where the plan has `SoftInputs`
    to_stage: Spans = ()
    """Input positions whose K/V the branch stages, for a commit in the next step. A model that denoises canvases also
    stages its self-conditioning; if a step stages nothing else, the span is empty."""
    scoring: Scoring = CHOOSE
    causal_stop: int = 0
    """Rows before this position are causal: each sees no later position, whatever the segments say, and decides the
    next one, as with shifted logits."""
    start: int = 0
    """First input position, if that is not the plan's: the branch reads what is before it from the cache."""

    @property
    def stop(self) -> int:
        return self.segments[-1][0]

    @property
    def bitmask_ids(self) -> tuple[int, ...]:
        """See `ChooseTokens`; empty where no tokens are chosen."""
        return self.scoring.bitmask_ids if isinstance(self.scoring, ChooseTokens) else ()

    @property
    def candidates(self) -> tuple[int, ...]:
        """See `ScoreCandidates`; empty where no candidates are scored."""
        return self.scoring.tokens if isinstance(self.scoring, ScoreCandidates) else ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes the `spans` that a branch of an earlier step staged part of the cache; its id is `step`. Under the
    two-phase protocol their K/V are broadcast and written everywhere. Where `shared` is true (single phase) all
    branches staged the same K/V, each worker commits its own, and nothing is sent."""

    step: int
    branch: int
    spans: Spans
    shared: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The evaluations of one request in one step."""

    step: int
    """The request's own count of its steps, from 1 on."""
    start: int
    """First input position; the same for all branches that begin at no later one."""
    canvas: tuple[int, ...]
    """Token ids from `start` to the end of the longest branch."""
    branches: tuple[Branch, ...]
    cached: Spans
    """Positions whose cached K/V this step reads; all other cached spans are dropped."""
    inputs: PlanInputs = None
    draft_adapter: bool = False
    """Rows that are not causal go through the model's draft adapter (see `lopa_ray.model.draft_adapter`)."""
    stage_shared: bool = False
    """All branches stage the same spans, and the K/V are the same on each of them (single phase)."""
    commit: Commit | None = None
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    logit_changes: LogitChanges | None = None
    """Penalties and biases on the canvas, without the branches' fills; None: logits stay what they are."""
    token_bitmasks: tuple[bytes, ...] = ()
    """Sets of tokens under a constraint; see `lopa_ray.constraints.token_bitmasks.unpack_bitmask`."""
    scores_decided: bool = False
    """Whether decided positions of `Branch.scored` are scored like masked positions, so that tokens can be replaced."""

    @property
    def num_rows(self) -> int:
        return self.rows_of(range(len(self.branches)))

    def rows_of(self, branches: Iterable[int]) -> int:
        return sum(self._rows(self.branches[index]) for index in branches)

    @property
    def max_branch_rows(self) -> int:
        return max(map(self._rows, self.branches))

    def _rows(self, branch: Branch) -> int:
        return branch.stop - max(self.start, branch.start)

    def commit_of(self, branch: int) -> Commit:
        return Commit(self.step, branch, self.branches[branch].to_stage, self.stage_shared)

    def token_bitmask(self, branch: Branch, position: int) -> bytes | None:
        """The tokens that a scored position may get; None: any."""
        if not branch.bitmask_ids:
            return None
        return self.token_bitmasks[branch.bitmask_ids[position - branch.scored.start]]

    def input_ids(self, branch: Branch) -> list[int]:
        """Token ids from `start` to the branch's stop, with its fill set filled in."""
        ids = list(self.canvas[: branch.stop - self.start])
        for position, token in branch.fills:
            ids[position - self.start] = token
        return ids


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """K/V of a span of a prompt that workers store for other requests; see `PrefixIndex`."""

    prefix_id: int
    span: range


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step on one worker."""

    request_id: int
    slot: int
    plan: Plan
    branch_indices: tuple[int, ...]
    source_rank: int | None = None  # of the worker with the winner's staged K/V; None: every worker its own
    stored_prefix: tuple[StoredPrefix, ...] = ()
    """Parts of a prompt whose K/V the worker has stored, from position 0 on; their rows are not computed."""
    save_prefix: StoredPrefix | None = None
    """The part of the prompt whose K/V the worker stores, after the plan's commit, for other requests."""

    @property
    def start(self) -> int:
        return self.stored_prefix[-1].span.stop if self.stored_prefix else self.plan.start


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One worker's part of one step: all requests in flight, in the same order everywhere."""

    epoch: int  # the membership of workers in which the step runs
    step: int
    requests: tuple[ScheduledRequest, ...]
    evict: tuple[int, ...] = ()  # ids of the stored prefixes that the worker drops, before anything else

    @property
    def commits_by_source(self) -> dict[int, tuple[ScheduledRequest, ...]]:
        """Rank of a worker → the requests whose commits bring K/V from it, in order of rank and the same everywhere."""
        by_source: dict[int, tuple[ScheduledRequest, ...]] = {}
        for request in self.requests:
            if request.plan.commit is not None and request.source_rank is not None:
                by_source[request.source_rank] = (*by_source.get(request.source_rank, ()), request)
        return dict(sorted(by_source.items()))
