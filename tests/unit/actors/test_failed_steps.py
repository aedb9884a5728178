"""What a master makes of a failed step: which request ends, and when the group does. Workers are replaced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.client.client_journals import ClientJournals
from actors.group.group_membership import GroupMembership
from actors.group.master import MAX_REPEATS, Master
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import TransferError, WorkerError, WorkerLostError, WorkerMemoryError
from lopa_ray.protocol.events import RequestFailure, StepEvents
from lopa_ray.scheduling.poison_requests import MAX_LOSSES
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.scheduling.step_limit import INITIAL_ROWS
from support.fake_model import VOCABULARY, FakeModel

LACK = WorkerMemoryError("worker 0 lacks memory")


def session() -> Any:
    return new_session((1, 2), LopaSettings(max_new_tokens=8, block_size=4, num_branches=2), VOCABULARY)


def master(requests: int) -> tuple[Master, list[int]]:
    """A master whose requests are in flight, on one worker that is not there."""
    started = Master()
    started.scheduler = Scheduler(requests)
    started.membership = SimpleNamespace(pool=SimpleNamespace(), close=lambda: None)
    ids = [started.scheduler.submit(session()) for _ in range(requests)]
    started.scheduler.plan(1)
    return started, ids


def failures(started: Master) -> dict[int, Exception]:
    return {
        event.request_key: event.error
        for event in started.scheduler.drain()
        if isinstance(event, RequestFailure)
    }


def test_an_error_that_no_request_is_to_blame_for_ends_the_group_after_a_few_attempts() -> None:
    started, ids = master(3)
    error = TransferError("the workers did not enter a new epoch: worker 0 lacks memory")
    for _ in range(MAX_REPEATS):
        started.handle(error)
        assert failures(started) == {} and started._broken is None
    assert started.scheduler.limit.rows == INITIAL_ROWS and started.scheduler.poison.next_of(ids) is None
    started.handle(error)
    assert isinstance(started._broken, WorkerLostError)


def test_an_innocent_request_goes_on_when_the_other_one_is_cancelled_during_its_lone_step() -> None:
    started, (first, second) = master(2)
    started.handle(WorkerError("one of the two"))
    started.scheduler.plan(1)
    assert started.scheduler.planned_ids == (first,)
    started.scheduler.cancel(first)
    started.handle(WorkerError("the first"))
    assert list(failures(started)) == [first]
    started.scheduler.plan(1)
    assert started.scheduler.planned_ids == (second,)


class FakePool(list[str]):
    """Workers that enter an epoch, and one of which fails to stage K/V again."""

    epoch = 1

    def __init__(self, error: Exception) -> None:
        super().__init__(["old", "new"])
        self.workers, self.removed, self._error = self, [], error

    def remove_workers(self, workers: Any) -> None:
        self.removed += workers

    async def add_workers(self, newcomers: Any, request_by_slot: Any) -> list[Any]:
        return []

    async def join_epoch(self, request_by_slot: Any, pending: Any) -> list[tuple[bool, ...]]:
        return [(), ()]

    async def restage(self, lost: Any) -> None:
        raise self._error


@pytest.mark.parametrize("error", [LACK, WorkerError("worker 1 failed"), TransferError("not reached")])
def test_a_change_that_fails_is_no_error_of_a_request_and_newcomers_leave(error: Exception) -> None:
    changing: Any = object.__new__(GroupMembership)
    changing.pool, changing.target = FakePool(error), 2
    failed: list[Exception] = []
    changing.pending = SimpleNamespace(
        take_ready=lambda: ["new"], record_failure=failed.append, set_target=lambda target: None
    )
    with pytest.raises(TransferError, match=str(error)):
        asyncio.run(changing.change(Scheduler(1)))
    assert changing.pool.removed == ["new"] and failed == [error]


def test_masters_that_die_again_and_again_end_the_request_that_ran_alone() -> None:
    journals = ClientJournals()
    for number in range(3):
        journals.begin(number, session())
    assert journals.record_silent_loss(max_num_seqs=2) is None
    assert journals.losses == {0: MAX_LOSSES, 1: MAX_LOSSES}  # the third one had no slot
    for number in range(2):
        assert journals.record_silent_loss(max_num_seqs=2) is None  # it may have been chance
        assert journals.record_silent_loss(max_num_seqs=2) == number
        journals.end(number)
    assert journals.record_silent_loss(max_num_seqs=2) is None
    assert journals.losses == {2: MAX_LOSSES}


def test_a_step_in_the_next_group_clears_a_request() -> None:
    journals = ClientJournals()
    decoding = session()
    for number in range(2):
        journals.begin(number, decoding)
    assert journals.record_silent_loss(max_num_seqs=2) is None
    scheduler = Scheduler(1)
    request_id = scheduler.submit(decoding)
    [step] = scheduler.advance([FakeModel().execute(plan) for plan in scheduler.plan(1)])
    state = scheduler.session_state(request_id)
    assert state is not None
    events = StepEvents((replace(step, request_key=0),), None, {0: state})
    assert [event.request_key for event in journals.record(events)] == [0]
    assert journals.record_silent_loss(max_num_seqs=2) is None
    assert journals.record_silent_loss(max_num_seqs=2) == 1


def test_a_request_is_dropped_while_its_group_is_replaced() -> None:
    journals = ClientJournals()
    for number in range(2):
        journals.begin(number, session())
    journals.record_silent_loss(max_num_seqs=2)
    journals.end(0)  # its deadline is over, or its caller has left
    assert list(journals.resumed_sessions()) == [1] and list(journals.losses) == [1]


def test_what_is_asked_while_a_group_starts_waits_for_its_start() -> None:
    """After a loss the next master is asked as soon as its process is there."""

    async def main() -> None:
        master = Master()
        asked = [
            asyncio.create_task(question)
            for question in (master.status(), master.checksums(), master.resize(2))
        ]
        await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(main())
