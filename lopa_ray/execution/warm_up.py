"""Warm-up: runs steps without a request, so that layers and kernels are compiled before the first request."""

from __future__ import annotations

from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Branch, Commit, Plan, ScheduledRequest, StepPlan

ROWS = (48, 16)
"""Rows of the warm-up forwards. There are two sizes, because int8 matmuls of few rows have separate graphs."""


def warm_up(runner: BranchRunner) -> None:
    """Compile layers and kernels now. A first step that takes minutes could be taken for a worker that does not answer.

    All shards of a model have to call this at the same time.
    """
    for most in ROWS:
        rows = min(most, runner.cache.capacity)
        canvas = (runner.vocabulary.mask_token_id,) * rows
        whole, in_two = (Branch(((rows, rows),)),), (Branch(((rows - 1, rows - 1), (rows, rows))),)
        first = Plan(1, 0, canvas, whole, (), range(rows), to_stage=(range(1),))
        commit = Commit(1, 0, first.to_stage, shared=False)
        second = Plan(2, 1, canvas[1:], in_two, first.to_stage, range(rows), commit=commit)
        for plan in (first, second):
            runner.execute(StepPlan(0, plan.step, (ScheduledRequest(0, 0, plan, (0,)),)))
        runner.reconcile({}, ())
