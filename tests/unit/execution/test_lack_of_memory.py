"""A step that lacks memory: one more attempt with an emptied allocator, and the warm-up that shows it at the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from lopa_ray.execution.model_loader import EXPECTED_BRANCHES, largest_step
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from support.in_process_group import report_bytes
from support.tiny_model import load_tiny_model

pytestmark = pytest.mark.stand_in

PLAN = Plan(1, 0, (1, 2, 127, 127), (Branch(((4, 4),), range(2, 4), to_stage=(range(2),)),), ())
STEP = StepPlan(0, 1, (ScheduledRequest(1, 0, PLAN, (0,)),))


class LacksMemory:
    """Has the next forwards fail, as many as `failures`."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, *_: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@contextmanager
def lack_of_memory(runner: BranchRunner, failures: int) -> Iterator[LacksMemory]:
    lacks = LacksMemory(failures)
    hook = runner.model.layers[-1].register_forward_pre_hook(lacks)
    try:
        yield lacks
    finally:
        hook.remove()


@pytest.fixture
def runner() -> BranchRunner:
    return BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=96)


def test_a_step_that_lacks_memory_is_tried_once_more(runner: BranchRunner) -> None:
    other = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=96)
    with lack_of_memory(runner, 1) as lacks:
        ((_, report),) = runner.execute(STEP).reports
    assert lacks.failures == 0
    ((_, expected),) = other.execute(STEP).reports
    assert report_bytes(report) == report_bytes(expected)
    staged = ScheduledRequest(1, 0, PLAN, (0,))
    assert runner.reconcile({0: 1}, [staged]) == (True,)


def test_and_not_a_third_time(runner: BranchRunner) -> None:
    with lack_of_memory(runner, 3) as lacks, pytest.raises(torch.OutOfMemoryError):
        runner.execute(STEP)
    assert lacks.failures == 1


def test_the_largest_step_of_the_warm_up_uses_every_slot(runner: BranchRunner) -> None:
    step = largest_step(runner)
    assert [scheduled.slot for scheduled in step.requests] == [0, 1, 2]
    assert len(step.requests[0].plan.canvas) == 96
    reports = runner.execute(step).reports
    assert len(reports) == 1 + 2 * EXPECTED_BRANCHES
    runner.reconcile({}, ())
    assert all(checksum.spans == () for checksum in runner.checksums())
