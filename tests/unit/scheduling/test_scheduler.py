"""Many requests step by step, over one worker and several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import ProtocolError, RequestCancelledError, ScoreError, StepLimitError
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.scheduling.scheduler import Scheduler
from support.fake_model import VOCABULARY, FakeModel
from support.step_reports import pack_reports

SMALL = LopaSettings(max_new_tokens=8, block_size=4, num_branches=3)
MODEL = FakeModel(seed=1)


def session(wanted: GenerationSettings = SMALL, prompt: tuple[int, ...] = (1, 2)) -> DecodeSession:
    return new_session(prompt, wanted, VOCABULARY)


def step(scheduler: Scheduler, workers: int = 1) -> list[RequestEvent]:
    plans = scheduler.plan(workers)
    return scheduler.advance([MODEL.execute(plan) for plan in plans])


def finish(scheduler: Scheduler, workers: int = 1) -> list[RequestEvent]:
    events = []
    while scheduler.busy:
        events += step(scheduler, workers)
    return events


def ended(events: list[RequestEvent]) -> list[int]:
    return [
        event.request_key
        for event in events
        if isinstance(event, RequestFailure) or event.outcome.finish_reason is not None
    ]


def test_nothing_to_do():
    scheduler = Scheduler(2)
    assert not scheduler.busy
    assert scheduler.plan(2) == []
    assert scheduler.advance([]) == []
    assert scheduler.drain() == []


def test_requests_wait_for_slots_and_join_in_order():
    scheduler = Scheduler(2)
    wanted = [SMALL, SMALL.replace(max_new_tokens=1), SMALL, SMALL.replace(max_new_tokens=2), SMALL]
    requests = [scheduler.submit(session(decoding)) for decoding in wanted]
    assert requests == sorted(requests)
    joined: list[int] = []
    slots: dict[int, int] = {}
    while scheduler.busy:
        (plan,) = scheduler.plan(1)
        assert len(plan.requests) <= 2
        assert len({scheduled.slot for scheduled in plan.requests}) == len(plan.requests)
        for scheduled in plan.requests:
            assert slots.setdefault(scheduled.request_id, scheduled.slot) == scheduled.slot
            if scheduled.request_id not in joined:
                joined.append(scheduled.request_id)
        scheduler.advance([MODEL.execute(plan)])
    assert joined == requests


@pytest.mark.medium
@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_every_branch_is_evaluated_once_and_the_load_is_even(workers, slots, lengths):
    scheduler = Scheduler(slots)
    for length in lengths:
        scheduler.submit(session(SMALL.replace(max_new_tokens=length, num_branches=1 + length % 7)))
    while scheduler.busy:
        plans = scheduler.plan(workers)
        assert len(plans) == workers
        loads = []
        for plan in plans:
            assert (plan.epoch, plan.step) == (plans[0].epoch, plans[0].step)
            # The same requests in the same order everywhere, whoever evaluates them.
            assert [(w.request_id, w.slot, w.plan, w.source_rank) for w in plan.requests] == [
                (w.request_id, w.slot, w.plan, w.source_rank) for w in plans[0].requests
            ]
            loads.append(
                sum(w.plan.branches[b].stop - w.plan.start for w in plan.requests for b in w.branch_indices)
            )
        for index, scheduled in enumerate(plans[0].requests):
            assigned = sorted(b for plan in plans for b in plan.requests[index].branch_indices)
            assert assigned == list(range(len(scheduled.plan.branches)))
        longest = max(b.stop - w.plan.start for w in plans[0].requests for b in w.plan.branches)
        assert max(loads) - min(loads) <= longest
        scheduler.advance([MODEL.execute(plan) for plan in plans])


@pytest.mark.medium
@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4))
def test_outcomes_depend_on_neither_workers_nor_slots(workers, slots):
    wanted = [SMALL, D2FSettings(max_new_tokens=9), FastDllmSettings(max_new_tokens=7, block_size=3), SMALL]
    scheduler = Scheduler(slots)
    requests = [scheduler.submit(session(decoding, (number,))) for number, decoding in enumerate(wanted)]
    events = finish(scheduler, workers)
    for request, (number, decoding) in zip(requests, enumerate(wanted), strict=True):
        alone = session(decoding, (number,))
        expected = []
        while not alone.finished:
            plan = alone.plan()
            expected.append(alone.advance(MODEL.reports(plan)))
        got = [
            event.outcome
            for event in events
            if event.request_key == request and isinstance(event, RequestStep)
        ]
        assert got == expected


def test_cancelling_frees_the_slot_at_the_next_step():
    scheduler = Scheduler(1)
    first, second, third = (scheduler.submit(session()) for _ in range(3))
    step(scheduler)
    scheduler.cancel(first)
    scheduler.cancel(third)  # still waiting
    scheduler.cancel(first)  # twice is once
    scheduler.cancel(999)
    events = finish(scheduler)
    failures = [event for event in events if isinstance(event, RequestFailure)]
    assert [event.request_key for event in failures] == [first, third]
    assert all(isinstance(event.error, RequestCancelledError) for event in failures)
    assert ended(events) == [first, third, second]


def test_cancelling_between_plan_and_reports():
    scheduler = Scheduler(2)
    first, second = scheduler.submit(session()), scheduler.submit(session())
    (plan,) = scheduler.plan(1)
    scheduler.cancel(first)
    events = scheduler.advance([MODEL.execute(plan)])
    assert [(type(event), event.request_key) for event in events] == [
        (RequestStep, second),
        (RequestFailure, first),
    ]
    assert ended(finish(scheduler)) == [second]


def test_cancelling_all_leaves_nothing():
    scheduler = Scheduler(1)
    requests = [scheduler.submit(session()) for _ in range(3)]
    step(scheduler)
    for request_id in scheduler.unfinished_ids:
        scheduler.abort(request_id, RuntimeError("gone"))
    assert scheduler.busy
    assert scheduler.plan(1) == []
    assert ended(scheduler.advance([])) == requests
    assert not scheduler.busy
    scheduler.submit(session())
    assert len(ended(finish(scheduler))) == 1


def test_a_finished_session_cannot_be_submitted():
    with pytest.raises(ProtocolError, match="finished"):
        Scheduler(1).submit(session(SMALL.replace(max_new_tokens=0)))


def poisoned(plan_report: StepReport, request: int, kind: str) -> StepReport:
    """Spoil the reports of one request."""
    spoiled = []
    for request_id, report in plan_report.reports:
        if request_id != request:
            spoiled.append((request_id, report))
        elif kind == "nan":
            spoiled.append((request_id, replace(report, scores=report.scores * float("nan"))))
        elif kind == "positions":
            spoiled.append((request_id, replace(report, positions=report.positions + 1000)))
    return pack_reports(plan_report.epoch, plan_report.step, spoiled)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("nan", ScoreError), ("missing", ProtocolError), ("positions", KeyError)],
)
def test_an_error_ends_its_own_request_only(kind, error):
    scheduler = Scheduler(3)
    requests = [scheduler.submit(session()) for _ in range(3)]
    step(scheduler)
    (plan,) = scheduler.plan(1)
    events = scheduler.advance([poisoned(MODEL.execute(plan), requests[1], kind)])
    (failure,) = (event for event in events if isinstance(event, RequestFailure))
    assert failure.request_key == requests[1]
    assert isinstance(failure.error, error)
    rest = finish(scheduler)
    assert sorted(ended(rest)) == [requests[0], requests[2]]
    assert not any(event.request_key == requests[1] for event in rest)


def test_a_session_that_cannot_plan_ends_alone():
    scheduler = Scheduler(2)
    broken, fine = session(), session()
    requests = [scheduler.submit(broken), scheduler.submit(fine)]
    broken.steps = broken.step_limit
    events = finish(scheduler)
    (failure,) = (event for event in events if isinstance(event, RequestFailure))
    assert failure.request_key == requests[0]
    assert isinstance(failure.error, StepLimitError)
    assert ended(events)[-1] == requests[1]


def test_stale_reports_are_rejected_and_change_nothing():
    scheduler = Scheduler(2)
    scheduler.submit(session())
    old = [MODEL.execute(plan) for plan in scheduler.plan(2)]
    scheduler.epoch += 1
    with pytest.raises(ProtocolError, match="epoch 0, step 1"):
        scheduler.advance(old)
    good = [MODEL.execute(plan) for plan in scheduler.plan(2)]
    with pytest.raises(ProtocolError):
        scheduler.advance([good[0], old[1]])
    first = scheduler.advance(good)
    with pytest.raises(ProtocolError, match="step 2"):
        scheduler.advance(good)
    other = Scheduler(1)
    other.submit(session())
    (event,) = step(other)
    assert [e.outcome for e in first if isinstance(e, RequestStep)] == [event.outcome]
    finish(scheduler)
