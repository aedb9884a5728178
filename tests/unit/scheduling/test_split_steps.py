"""Steps that are split because a worker lacks memory: their size, whose turn it is, and the same tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.scheduler import SPLIT_FACTOR, Scheduler
from support.fake_model import VOCABULARY, FakeModel

pytestmark = pytest.mark.stand_in

SETTINGS = LopaSettings(max_new_tokens=24, block_size=4, num_branches=3, stop_at_eos=False)
MODEL = FakeModel(seed=2)


def sessions(count: int) -> list[DecodeSession]:
    return [new_session((1, 2 + index), SETTINGS, VOCABULARY) for index in range(count)]


def rows(plan: StepPlan) -> int:
    """Rows of a worker's share of a step."""
    return sum(
        scheduled.plan.branches[index].stop - scheduled.start
        for scheduled in plan.requests
        for index in scheduled.branch_indices
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_are_smaller_and_requests_take_turns(workers: int) -> None:
    alone, together = sessions(5), sessions(5)
    for session in alone:
        while not session.finished:
            scheduler = Scheduler(1)
            scheduler.submit(session)
            scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
    scheduler = Scheduler(5)
    ids = [scheduler.submit(session) for session in together]
    failed = max(map(rows, scheduler.plan(workers)))
    assert scheduler.split_steps()
    assert scheduler.max_rows == int(failed * SPLIT_FACTOR)
    turns: Counter[int] = Counter()
    while scheduler.busy:
        plans = scheduler.plan(workers)
        taking_part = [scheduled.request_id for scheduled in plans[0].requests]
        assert len(taking_part) == 1 or max(map(rows, plans)) <= scheduler.max_rows
        turns.update(taking_part)
        running = scheduler.running_ids
        counts = [turns[request_id] for request_id in ids if request_id in running]
        assert max(counts) - min(counts) <= 1
        scheduler.advance([MODEL.execute(plan) for plan in plans])
    assert [session.generated for session in together] == [session.generated for session in alone]


def test_a_step_of_one_request_is_not_split() -> None:
    scheduler = Scheduler(2)
    scheduler.submit(sessions(1)[0])
    scheduler.plan(1)
    assert not scheduler.split_steps()
    assert scheduler.max_rows is None


def test_steps_grow_again_after_a_long_time_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa_ray.scheduling.scheduler.GROW_AFTER", 3)
    scheduler = Scheduler(4)
    for session in sessions(4):
        scheduler.submit(session)
    scheduler.plan(1)
    assert scheduler.split_steps()
    limits = []
    for _ in range(4):
        scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
        limits.append(scheduler.max_rows)
    assert limits[0] == limits[1] < limits[2]
