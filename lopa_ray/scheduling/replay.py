"""Replay: the steps of a request from which its K/V can be computed once more. Cached K/V depend on the tokens of the
window at the time they were written, so they cannot be rebuilt from the decided tokens alone. So the inputs of the
winning branch of each step whose K/V are still cached are run again, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Commit, Plan, ScheduledRequest
from lopa_ray.protocol.plan_inputs import ConditionedInputs
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import CHOOSE, DenoiseTokens


class Replay:
    """The replay of one request, which grows and shrinks with its steps."""

    def __init__(self, begun: Sequence[ScheduledRequest] = ()) -> None:
        """`begun`: of a request that was restored by a replay, that one."""
        self._steps = [(scheduled.plan, _replayed_commit(scheduled)) for scheduled in begun]
        """Plans, with the commit of what each of them has staged."""
        self._commit: Commit | None = None  # the commit of the K/V that the last staging step has staged
        for _, commit in self._steps:
            self._commit = commit or self._commit

    def record(self, plan: Plan, outcome: StepOutcome) -> None:
        # A replayed step is dropped if the new step reads nothing that it cached.
        while self._steps and not _depends(plan, self._steps[-1][1]):
            self._commit = self._steps.pop()[0].commit
        if outcome.commit is not None or plan.cached:
            # Its commit is the commit of the last step that staged K/V.
            self._steps.append((replace(plan, commit=self._commit), outcome.commit))
        self._commit = outcome.commit or self._commit

    @property
    def requests(self) -> list[ScheduledRequest]:
        """The requests that workers carry out; see `RequestSession.replay`."""
        own = [() if commit is None or commit.shared else (commit.branch,) for _, commit in self._steps]
        pairs = zip(self._steps, own, strict=True)
        return [ScheduledRequest(0, 0, _filling(plan), branches) for (plan, _), branches in pairs]


def _replayed_commit(scheduled: ScheduledRequest) -> Commit | None:
    """The commit of what a replayed step stages."""
    plan, branches = scheduled.plan, scheduled.plan.branches
    branch = next(iter(scheduled.branch_indices), 0)
    if not scheduled.branch_indices and not (plan.stage_shared and branches[0].to_stage):
        return None
    return Commit(plan.step, branch, branches[branch].to_stage, plan.stage_shared)


def _filling(plan: Plan) -> Plan:
    """The part of a plan that fills a cache: all of a step on a canvas, whose logits condition the next step."""
    if isinstance(plan.branches[0].scoring, DenoiseTokens):
        return plan
    return replace(
        plan,
        branches=tuple(replace(branch, scored=range(0), scoring=CHOOSE) for branch in plan.branches),
        sampling_params=SamplingParams(),
        logit_changes=None,
        token_bitmasks=(),
    )


def _depends(plan: Plan, commit: Commit | None) -> bool:
    """Whether a step reads any of what a commit has brought into the cache, or is conditioned on the step that it is
    of. A chain of steps that are each conditioned on the step before stays whole, since only its end is looked at."""
    if commit is None:
        return False
    return plan.inputs == ConditionedInputs(commit.step) or any(
        cached.start < span.stop and span.start < cached.stop
        for cached in plan.cached
        for span in commit.spans
    )
