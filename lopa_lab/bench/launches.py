"""Launches of a step on an accelerator, counted without one."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_lab.bench.launch_counter import META, LaunchCounter
from lopa_lab.bench.step_plans import step_of
from lopa_lab.bench.step_size import StepSize
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformer import Transformer

COMMITTED = 8
"""Positions that the step commits, and as many that it stages."""


@dataclass(frozen=True, slots=True)
class StepLaunches:
    """Kernels, copies and waits of a step on an accelerator."""

    kernels: int
    copies_in: int
    syncs: int
    """Copies back, for each of which the host waits."""


def count_launches(config: NativeConfig, size: StepSize) -> StepLaunches:
    """Count those of a worker's step of a native model in bf16 that commits, stages and scores, where attention is one
    call for all branches."""
    with META:
        model = Transformer(config)
    runner = BranchRunner(
        model.bfloat16(),
        max_num_seqs=size.requests,
        max_model_len=size.prefix + size.window + COMMITTED,
        attention=PackedAttention(),
    )
    mask = runner.vocabulary.mask_token_id
    later = StepSize(size.requests, size.branches, size.window, size.prefix + COMMITTED)
    first = size.plans(mask, step=1, staged=COMMITTED)
    second = later.plans(mask, step=2, committed=COMMITTED, staged=COMMITTED)
    with LaunchCounter():
        runner.execute(step_of(runner, first))
    plan = step_of(runner, second)
    with LaunchCounter() as counter:
        runner.execute(plan)
    return StepLaunches(counter.total, counter.copies_in, counter.syncs)
