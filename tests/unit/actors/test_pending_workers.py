"""Which workers a group waits for when it starts, and which error ends the start. The workers are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

import actors.group.pending_workers
from actors.group.pending_workers import MAX_FAILURES, START_FAILURES, PendingWorkers
from actors.group.start_phases import StartPhases
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.errors import CheckpointError, LopaError, WorkerLostError

DIED = ActorDiedError()


class FakeWorker:
    """It has a `place`, `answers` and is `loaded` when a test says so."""

    def __init__(self) -> None:
        self.answers, self.place, self.loading = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.killed = False

    def ping(self) -> asyncio.Future[Any]:
        return asyncio.gather(self.place.wait(), self.answers.wait())

    def call(self, method: str) -> tuple[Any, ...]:
        assert method == "prepare"
        return ()


class FakeFactory:
    """Makes workers that have a place and answer, unless it is told otherwise."""

    def __init__(self, placed: int) -> None:
        self.made: list[FakeWorker] = []
        self.error: Exception | None = None
        self._placed = placed

    def create(self) -> FakeWorker:
        self.made.append(worker := FakeWorker())
        worker.answers.set()
        if len(self.made) <= self._placed or self.error is not None:
            worker.place.set()
        if self.error is not None:
            worker.loaded.set_exception(self.error)
        return worker

    def kill(self, worker: FakeWorker) -> None:
        worker.killed = True

    async def load_model(self, worker: FakeWorker) -> str:
        worker.loading.set()
        await worker.loaded
        return "info"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.group.pending_workers, "PING_PERIOD_S", 0.001)
    monkeypatch.setattr(actors.group.pending_workers, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(GroupSettings, "loading_hung_after_s", 0.05)


Test = Callable[[FakeFactory, PendingWorkers, "asyncio.Task[None]"], Awaitable[None]]


def start_of_two(test: Test, *, placed: int = 100) -> None:
    async def main() -> None:
        factory: Any = FakeFactory(placed)
        pending = PendingWorkers(factory, GroupSettings(), lambda: None)
        pending.set_target(2)
        start = asyncio.create_task(pending.until_start(StartPhases()))
        await asyncio.sleep(0)
        try:
            await test(factory, pending, start)
        finally:
            start.cancel()
            pending.set_target(0)

    asyncio.run(main())


def test_it_waits_for_one_that_is_slow_and_answers() -> None:
    async def test(factory: FakeFactory, pending: PendingWorkers, start: asyncio.Task[None]) -> None:
        first, second = factory.made
        first.loaded.set_result(None)
        await asyncio.sleep(0.2)  # far longer than one may be silent
        assert pending.ready and not start.done()
        second.loaded.set_result(None)
        await start
        assert pending.take_ready() == [first, second] and not pending.last_error

    start_of_two(test)


def test_it_begins_without_one_that_hangs_and_another_takes_its_place() -> None:
    async def test(factory: FakeFactory, pending: PendingWorkers, start: asyncio.Task[None]) -> None:
        first, second = factory.made
        await second.loading.wait()
        second.answers.clear()
        first.loaded.set_result(None)
        await start
        assert pending.take_ready() == [first] and second.killed and not first.killed
        assert "did not answer for 0.05 s" in str(pending.last_error) and len(pending) == 1

    start_of_two(test)


def test_it_begins_without_one_that_gets_no_place_and_keeps_its_demand() -> None:
    async def test(factory: FakeFactory, pending: PendingWorkers, start: asyncio.Task[None]) -> None:
        first, second = factory.made
        first.loaded.set_result(None)
        await start
        assert pending.take_ready() == [first] and not second.killed and len(pending) == 1

    start_of_two(test, placed=1)


def test_it_begins_while_the_place_of_a_dead_one_is_filled() -> None:
    async def test(factory: FakeFactory, pending: PendingWorkers, start: asyncio.Task[None]) -> None:
        first, second = factory.made
        second.loaded.set_exception(DIED)
        first.loaded.set_result(None)
        await start
        assert pending.take_ready() == [first]

    start_of_two(test)


@pytest.mark.parametrize(
    ("error", "raised", "attempts"),
    [
        (CheckpointError("no such file"), CheckpointError("no such file"), 1),
        (OutOfMemoryError("the node is full"), WorkerLostError("Ray's memory monitor killed it"), 1),
        (DIED, WorkerLostError("a new worker died"), START_FAILURES),
    ],
    ids=lambda value: getattr(value, "__class__", value).__name__,
)
def test_what_all_workers_fail_for_is_raised(error: Exception, raised: LopaError, attempts: int) -> None:
    async def test(factory: FakeFactory, pending: PendingWorkers, start: asyncio.Task[None]) -> None:
        factory.error = error
        for worker in factory.made:
            worker.loaded.set_exception(error)
        with pytest.raises(type(raised), match=str(raised)):
            await start
        assert len(factory.made) <= 2 * attempts + 1

    start_of_two(test)


def test_a_worker_of_a_running_group_is_tried_again_but_not_for_ever() -> None:
    async def main() -> None:
        factory: Any = FakeFactory(100)
        factory.error = DIED
        ready = asyncio.Event()
        pending = PendingWorkers(factory, GroupSettings(), ready.set)
        pending.set_target(1)
        await asyncio.wait_for(ready.wait(), 10)
        assert pending.take_ready() == [] and len(factory.made) == MAX_FAILURES
        assert "a new worker died" in str(pending.last_error)
        pending.set_target(1)
        assert len(pending) == 0
        ready.clear()
        factory.error = None
        pending.reset_failures()  # an operator has asked for workers
        pending.set_target(1)
        while len(factory.made) == MAX_FAILURES:
            await asyncio.sleep(0)
        factory.made[-1].loaded.set_result(None)
        await asyncio.wait_for(ready.wait(), 10)
        assert pending.take_ready() == [factory.made[-1]]

    asyncio.run(main())
