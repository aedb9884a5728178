"""Replay: the steps of a request from which its K/V can be computed once more. It does no I/O.

Cached K/V depend on the tokens of the window at the time they were written, so they cannot be rebuilt from the decided
tokens alone. For each step whose K/V are still in the cache a replay has the inputs of the winning branch. These
forwards are run again in order, starting with an empty cache. Inputs and cache are the same as before, so the K/V are
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, Spans
from lopa_ray.protocol.sampling_params import SamplingParams


class Replay:
    """The replay of one request, which grows and shrinks with its steps."""

    def __init__(self, begun: Sequence[ScheduledRequest] = ()) -> None:
        """`begun`: of a request that was restored by a replay, that one."""
        self._steps = [(scheduled.plan, scheduled.branch_indices) for scheduled in begun]
        self._commit: Commit | None = None
        """The commit of the K/V that the last staging step has staged."""
        for scheduled in begun:
            if scheduled.plan.to_stage:
                self._commit = _commit(scheduled.plan, next(iter(scheduled.branch_indices), 0))

    def record(self, plan: Plan, outcome: StepOutcome) -> None:
        """Record a step."""
        # A replayed step is dropped if the new step reads nothing that it cached.
        while self._steps and not _reads(plan, self._steps[-1][0].to_stage):
            self._commit = self._steps.pop()[0].commit
        if plan.to_stage or plan.cached:
            staged = plan.to_stage and not plan.stage_shared
            # Its commit is that of the last step that staged K/V.
            self._steps.append((replace(plan, commit=self._commit), (outcome.winner,) if staged else ()))
        if plan.to_stage:
            self._commit = _commit(plan, outcome.winner)

    @property
    def requests(self) -> list[ScheduledRequest]:
        """What workers carry out; see `DecodeSession.replay`."""
        return [ScheduledRequest(0, 0, _filling(plan), indices) for plan, indices in self._steps]


def _commit(plan: Plan, winner: int) -> Commit:
    return Commit(plan.step, winner, plan.to_stage, plan.stage_shared)


def _filling(plan: Plan) -> Plan:
    """The part of a plan that fills a cache."""
    return replace(
        plan,
        branches=tuple(Branch(branch.segments, branch.fills) for branch in plan.branches),
        scored=range(0),
        sampling_params=SamplingParams(),
        token_bitmasks=(),
        logit_changes=None,
        targets=(),
    )


def _reads(plan: Plan, spans: Spans) -> bool:
    """Whether a step reads any of `spans` from the cache."""
    return any(
        cached.start < span.stop and span.start < cached.stop for cached in plan.cached for span in spans
    )
