"""Steps that are made smaller: for lack of memory or because they are slow. Whose turn it is, and the same tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.scheduling.step_cost import StepCost
from lopa_ray.scheduling.step_limit import (
    GROW_AFTER,
    INITIAL_ROWS,
    MEMORY_FACTOR,
    TRY_AFTER,
    StepLimit,
)
from support.fake_model import VOCABULARY, FakeModel

pytestmark = pytest.mark.stand_in

SETTINGS = LopaSettings(max_new_tokens=24, block_size=4, num_branches=3, stop_at_eos=False)
WIDE = LopaSettings(max_new_tokens=24, block_size=24, num_branches=12, stop_at_eos=False)
MODEL = FakeModel(seed=2)


def sessions(count: int, settings: LopaSettings = SETTINGS) -> list[DecodeSession]:
    return [new_session((1, 2 + index), settings, VOCABULARY) for index in range(count)]


def decode_alone(sessions: list[DecodeSession]) -> list[list[int]]:
    """What they generate in steps that nothing makes smaller."""
    for session in sessions:
        scheduler = Scheduler(1)
        scheduler.submit(session)
        while scheduler.busy:
            scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
    return [session.generated for session in sessions]


def rows(plan: StepPlan) -> int:
    """Rows of a worker's share of a step."""
    return sum(
        scheduled.plan.branches[index].stop - scheduled.start
        for scheduled in plan.requests
        for index in scheduled.branch_indices
    )


def lanes(plan: StepPlan) -> int:
    """Branches of a worker's share of a step."""
    return sum(len(scheduled.branch_indices) for scheduled in plan.requests)


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_are_smaller_and_requests_take_turns(workers: int) -> None:
    together = sessions(5)
    scheduler = Scheduler(5)
    ids = [scheduler.submit(session) for session in together]
    for _ in range(3):
        scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(workers)])
    failed = max(map(rows, scheduler.plan(workers)))
    assert scheduler.split_steps()
    assert scheduler.limit.rows == int(failed * MEMORY_FACTOR)
    turns: Counter[int] = Counter()
    while scheduler.busy:
        plans = scheduler.plan(workers)
        taking_part = [scheduled.request_id for scheduled in plans[0].requests]
        assert all(lanes(plan) == 1 or rows(plan) <= scheduler.limit.rows for plan in plans)
        turns.update(taking_part)
        running = [*scheduler.request_by_slot.values()]
        counts = [turns[request_id] for request_id in ids if request_id in running]
        assert max(counts) - min(counts) <= 1
        scheduler.advance([MODEL.execute(plan) for plan in plans])
    assert [session.generated for session in together] == decode_alone(sessions(5))


def test_a_step_of_one_branch_on_each_worker_is_not_split() -> None:
    scheduler = Scheduler(2)
    for session in sessions(2):
        scheduler.submit(session)
    scheduler.plan(2)
    assert not scheduler.split_steps()
    assert scheduler.limit.rows == INITIAL_ROWS
    scheduler.plan(1)
    assert scheduler.split_steps()


def test_steps_grow_again_long_after_a_lack_of_memory() -> None:
    limit = StepLimit()
    limit.record_lack(800)
    limits = []
    for _ in range(GROW_AFTER + 1):
        limits.append(limit.rows)
        limit.record(1, 1, 0.0, 0.0)
    assert set(limits[:-1]) == {700} and limits[-1] > 800
    limit.record_lack(400)
    limit.record_lack(3000)
    assert limit.rows == 350


def test_the_limit_follows_the_time_of_steps() -> None:
    limit = StepLimit()
    assert limit.rows == INITIAL_ROWS
    limit.record(INITIAL_ROWS, 100, 0.1, 1.0)
    assert limit.rows == 2 * INITIAL_ROWS
    limit.record(10, 10, 0.001, 1.0)  # says nothing about large steps
    assert limit.rows == 2 * INITIAL_ROWS
    limit.record(INITIAL_ROWS, 100, 1.25, 1.0)
    assert limit.rows == INITIAL_ROWS  # it falls by half at most
    limit.record(INITIAL_ROWS, 100, 1.25, 1.0)
    assert limit.rows == int(INITIAL_ROWS / 1.25)
    limit.check(1_000_000)


def test_the_limit_stays_where_fewer_rows_would_hardly_be_faster() -> None:
    limit, cost = StepLimit(), StepCost()

    def step(rows: int) -> None:
        seconds = 1.5 + rows * 1e-4
        cost.record(rows, seconds)
        limit.record(rows, rows, seconds, cost.free_rows)

    for _ in range(20):
        step(100)
    for number in range(200):
        step(20 if number % 3 == 0 else max(100, min(1600, limit.rows) // 100 * 100))
    assert cost.free_rows > 1600 and limit.rows >= 1600


def test_branches_that_lacked_memory_are_refused_and_after_a_few_refusals_tried_again() -> None:
    limit = StepLimit()
    limit.refuse_branch(8000)
    limit.check(9000)  # one request alone may have had another reason
    limit.refuse_branch(7500)
    limit.check(7999)
    for _ in range(TRY_AFTER):
        with pytest.raises(SettingsError, match="at most 7999 in one forward"):
            limit.check(8000)
    limit.check(8000)
    limit.refuse_branch(8000)
    limit.refuse_branch(8000)
    with pytest.raises(SettingsError):
        limit.check(8000)
    limit.record(8000, 8000, 0.1, 1.0)
    limit.check(20_000)


def scheduler_of(limit: int) -> Scheduler:
    """A scheduler of eight slots whose steps have at most so many rows."""
    return Scheduler(8, limit=StepLimit(limit))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_step_that_is_too_large_is_made_in_parts_with_the_same_tokens(workers: int) -> None:
    [wide] = sessions(1, WIDE)
    scheduler = scheduler_of(60)
    scheduler.submit(wide)
    steps, forwards = 0, 0
    while scheduler.busy:
        plans = scheduler.plan(workers)
        assert max(map(rows, plans)) <= 60
        events = scheduler.advance([MODEL.execute(plan) for plan in plans])
        forwards += 1
        steps += len(events)
    assert steps == wide.steps < forwards
    assert [wide.generated] == decode_alone(sessions(1, WIDE))


def test_a_long_step_slows_other_requests_down_by_half_at_most() -> None:
    [wide], others = sessions(1, WIDE), sessions(4)
    scheduler = scheduler_of(260)
    long = scheduler.submit(wide)
    ids = [scheduler.submit(session) for session in others]
    of_long = of_others = 0
    while set(ids) & set(scheduler.unfinished_ids):
        [plan] = scheduler.plan(1)
        share = {request.request_id: request for request in plan.requests}
        assert set(scheduler.request_by_slot.values()) - {long} == set(share) - {
            long
        }  # they are in each step
        if scheduler.session_state(long) and len(share.get(long, plan.requests[0]).plan.branches) == 12:
            of_long += rows(replace(plan, requests=(share[long],))) if long in share else 0
            of_others += rows(replace(plan, requests=tuple(share[id_] for id_ in share if id_ != long)))
        assert of_long <= of_others
        scheduler.advance([MODEL.execute(plan)])
    while scheduler.busy:
        scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
    assert [session.generated for session in [*others, wide]] == [
        *decode_alone(sessions(4)),
        *decode_alone(sessions(1, WIDE)),
    ]


@pytest.mark.parametrize("limit", [27, 39, 55, 83, 119])
def test_a_long_step_never_keeps_another_request_waiting_for_long(limit: int) -> None:
    """Also where a branch of the one does not fit beside a step of the other."""
    scheduler = scheduler_of(limit)
    scheduler.submit(sessions(1, WIDE)[0])
    [other] = sessions(1, SETTINGS.replace(block_size=12))
    other_id = scheduler.submit(other)
    waits = longest = 0
    while other_id in scheduler.unfinished_ids:
        [plan] = scheduler.plan(1)
        waits = 0 if any(request.request_id == other_id for request in plan.requests) else waits + 1
        longest = max(longest, waits)
        scheduler.advance([MODEL.execute(plan)])
    assert longest <= 2
    while scheduler.busy:
        scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])


def test_a_lost_epoch_begins_a_step_in_parts_anew() -> None:
    [wide] = sessions(1, WIDE)
    scheduler = scheduler_of(60)
    scheduler.submit(wide)
    epoch = 0
    while scheduler.busy:
        plans = scheduler.plan(1)
        scheduler.advance([MODEL.execute(plan) for plan in plans])
        if wide.steps == 3 and epoch == 0:
            scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
            assert wide.steps == 3
            assert scheduler.plan(1)[0].requests[0].branch_indices[0] > 0
            scheduler.enter_epoch(epoch := 1, {})
            assert scheduler.plan(1)[0].requests[0].branch_indices[0] == 0
    assert epoch == 1
    assert [wide.generated] == decode_alone(sessions(1, WIDE))


def test_a_request_with_a_single_branch_beyond_the_bound_is_refused() -> None:
    scheduler = scheduler_of(20)
    long, short = scheduler.submit(sessions(1, WIDE)[0]), scheduler.submit(sessions(1)[0])
    events = []
    while scheduler.busy:
        events += scheduler.advance([MODEL.execute(plan) for plan in scheduler.plan(1)])
    [failure] = [event for event in events if isinstance(event, RequestFailure)]
    assert failure.request_key == long
    assert isinstance(failure.error, SettingsError)
    assert "26 positions" in str(failure.error) and "at most 20" in str(failure.error)
    assert events[-1].request_key == short and events[-1].outcome.finish_reason == "length"


def test_a_lack_of_memory_of_single_branches_lowers_the_bound() -> None:
    scheduler = Scheduler(2)
    for _ in range(2):
        request_id = scheduler.submit(sessions(1, WIDE)[0])
        scheduler.plan(1)
        assert not scheduler.split_steps()
        scheduler.refuse_branch()
        scheduler.cancel(request_id)
        scheduler.drain()
    errors = []
    for _ in range(TRY_AFTER + 1):
        scheduler.submit(sessions(1, WIDE)[0])
        scheduler.plan(1)
        errors += [str(failure.error) for failure in scheduler.drain()]
    assert "at most 25 in one forward (workers had too little memory for more)" in errors[0]
    assert scheduler.planned_ids  # such a request is tried again
