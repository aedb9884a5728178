"""The pre-write: what it costs to stage K/V of a span."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.step_plans import step_of
from lopa_lab.bench.step_size import StepSize
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.staging import StagedStep

REPEATS = 25


@torch.inference_mode()
def pre_write_ms(runner: BranchRunner, clock: Clock, sizes: Sequence[StepSize]) -> list[float]:
    """Median milliseconds of gathering the K/V of each size's whole window, of all its branches, out of a forward.

    All sizes are of one request. The runner's first slot is emptied.
    """
    calls = [_staging_call(runner, size) for size in sizes]
    runner.cache.reset(0, None)
    return clock.medians_ms(calls, repeats=REPEATS)


def _staging_call(runner: BranchRunner, size: StepSize) -> TimedCall:
    (plan,) = size.plans(runner.vocabulary.mask_token_id, staged=size.window)
    runner.cache.reset(0, 1)
    runner.cache.mark_committed(0, plan.cached)
    step = step_of(runner, [plan])
    packing = Packing(lanes_of(step.requests[0]), (), runner.packing_options)
    columns = packing.to_device(runner.device)
    hidden, kv = runner.forward(packing, columns)
    assert kv is not None
    return TimedCall(partial(StagedStep.gather, columns, hidden, kv))
