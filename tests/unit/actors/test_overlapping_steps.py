"""The steps of a master, one or two in flight, on a device that finishes each of them when the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from actors.group.master import Master
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import LopaError, TransferError, WorkerError, WorkerLostError
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.scheduler import Scheduler
from support.fake_model import VOCABULARY, FakeModel

pytestmark = pytest.mark.stand_in

MODEL = FakeModel(seed=1)
SETTINGS = LopaSettings(max_new_tokens=12, block_size=4, num_branches=3, stop_at_eos=False)
TIMEOUT_S = 10.0


class Device(list[str]):
    """A pool of one worker, which computes the steps in the order in which they were sent."""

    def __init__(self) -> None:
        super().__init__(["worker"])
        self.log: list[str] = []
        self.intact = True
        self.sent: deque[tuple[StepPlan, asyncio.Future[Any]]] = deque()
        self.dropped: list[int] = []

    def scatter(self, plans: list[StepPlan]) -> tuple[StepPlan, asyncio.Future[Any]]:
        """See `BranchPool.scatter`."""
        [plan] = plans
        self.log.append(f"send {requests_of(plan)}")
        step = plan, asyncio.get_running_loop().create_future()
        self.sent.append(step)
        return step

    def finish(self, error: LopaError | None = None) -> None:
        """The oldest step is computed, or fails."""
        plan, answer = self.sent.popleft()
        self.log.append(f"computed {requests_of(plan)}")
        if error is None:
            answer.set_result(MODEL.execute(plan))
        else:
            answer.set_exception(error)

    async def gather(self, batch: tuple[StepPlan, asyncio.Future[Any]]) -> list[Any]:
        """See `BranchPool.gather`."""
        self.log.append(f"wait for {requests_of(batch[0])}")
        return [await batch[1]]

    async def drop(self, batch: tuple[StepPlan, asyncio.Future[Any]]) -> None:
        """See `BranchPool.drop`."""
        self.dropped.append(batch[0].step)
        await batch[1]

    async def change(self, scheduler: Scheduler) -> None:
        """See `GroupMembership.change`."""
        assert all(answer.done() for _, answer in self.sent)  # no worker is busy with an old step
        self.sent.clear()
        self.log.append("change")
        self.intact = True
        scheduler.enter_epoch(scheduler.epoch + 1, {})


def requests_of(plan: StepPlan) -> list[int]:
    return [scheduled.request_id for scheduled in plan.requests]


class Membership(SimpleNamespace):
    """Of a group of that one worker; `due`: it is about to change."""

    due = False

    @property
    def change_due(self) -> bool:
        """See `GroupMembership.change_due`."""
        return self.due or not self.pool.intact

    async def change(self, scheduler: Scheduler) -> None:
        """See `GroupMembership.change`."""
        self.due = False
        await self.pool.change(scheduler)


def master_of(requests: int, *, overlap: bool = True) -> tuple[Master, Device]:
    """A master with requests 1, 2, ... of one client."""
    master, device = Master(), Device()
    master.scheduler = Scheduler(8, overlap=overlap)
    master.membership = Membership(pool=device, close=lambda: None)  # type: ignore[assignment]
    for number in range(requests):
        master.scheduler.submit(new_session((1, 2 + number), SETTINGS, VOCABULARY))
    return master, device


async def until(condition: Any) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0)


async def one_step(master: Master, device: Device, error: LopaError | None = None) -> None:
    """A call of `step` in which the device finishes its oldest step once the master waits for it."""
    waits = sum("wait" in entry for entry in device.log)
    step = asyncio.create_task(master.step())
    await until(lambda: sum("wait" in entry for entry in device.log) > waits or step.done())
    if not step.done():
        device.finish(error)
    await step


def test_the_next_half_is_sent_while_the_device_computes() -> None:
    async def run() -> list[str]:
        master, device = master_of(4)
        for _ in range(4):
            await one_step(master, device)
        return device.log

    one, other = [1, 2], [3, 4]
    assert asyncio.run(run()) == [
        *(f"send {one}", f"send {other}", f"wait for {one}", f"computed {one}"),
        # While the device computes the other half:
        *(f"send {one}", f"wait for {other}", f"computed {other}"),
        *(f"send {other}", f"wait for {one}", f"computed {one}"),
        *(f"send {one}", f"wait for {other}", f"computed {other}"),
    ]


@pytest.mark.parametrize(("requests", "overlap"), [(1, True), (4, False)])
def test_one_step_is_in_flight_where_there_is_nothing_to_overlap(requests: int, overlap: bool) -> None:
    async def run() -> list[str]:
        master, device = master_of(requests, overlap=overlap)
        for _ in range(2):
            await one_step(master, device)
        return device.log

    everything = [*range(1, requests + 1)]
    assert asyncio.run(run()) == 2 * [
        f"send {everything}",
        f"wait for {everything}",
        f"computed {everything}",
    ]


def test_a_change_of_the_group_waits_for_both_steps() -> None:
    async def run() -> list[str]:
        master, device = master_of(2)
        await one_step(master, device)
        device.log.clear()
        master.membership.due = True  # type: ignore[misc]
        await one_step(master, device)
        await one_step(master, device)
        return device.log

    assert asyncio.run(run()) == [
        *("wait for [2]", "computed [2]", "change"),
        *("send [1]", "send [2]", "wait for [1]", "computed [1]"),
    ]


@pytest.mark.parametrize("error", [WorkerError("injected"), WorkerLostError("a worker died")])
def test_after_an_error_the_other_step_ends_before_the_group_changes_and_both_are_run_again(
    error: LopaError,
) -> None:
    async def run() -> tuple[list[str], Device]:
        master, device = master_of(2)
        failing = asyncio.create_task(one_step(master, device, error))
        await until(lambda: device.dropped)
        assert not failing.done()
        device.finish()
        with pytest.raises(type(error)):
            await failing
        assert master.scheduler.planned_ids == (1, 2)
        master.handle(error)
        device.log.clear()
        while master.scheduler.busy:
            await one_step(master, device)
        return device.log, device

    log, device = asyncio.run(run())
    assert device.dropped == [1, 2]
    # An error of a worker has each request run alone once; a loss does not.
    alone = isinstance(error, WorkerError)
    assert log[:3] == (
        ["change", "send [1]", "wait for [1]"] if alone else ["change", "send [1]", "send [2]"]
    )


def test_the_cause_is_the_other_steps_error_where_a_transfer_failed_after_it() -> None:
    """The shard or worker that failed in the second step has left the group that the first one needed."""

    async def run() -> None:
        master, device = master_of(2)
        failing = asyncio.create_task(one_step(master, device, TransferError("a peer left")))
        await until(lambda: device.dropped)
        device.finish(WorkerError("injected"))
        with pytest.raises(WorkerError, match="injected"):
            await failing

    asyncio.run(run())


def test_the_timing_of_a_step_is_its_own() -> None:
    async def run() -> list[Any]:
        master, device = master_of(4)
        timings = []
        for _ in range(4):
            await one_step(master, device)
            assert master._unpublished is not None
            timings.append(master._unpublished[1])
        return timings

    timings = asyncio.run(run())
    assert len({(timing.plan, timing.scatter, timing.select) for timing in timings}) == 4
    assert all(timing.gather > 0 for timing in timings)


def log_results(master: Master, device: Device) -> None:
    """Log when the results of a step are sent to the client, with the states of its requests."""
    state_of = master.scheduler.session_state

    def logged_state(request: int) -> bytes | None:
        device.log.append(f"results of {request}")
        return state_of(request)

    master.scheduler.session_state = logged_state  # type: ignore[method-assign]


def test_results_are_sent_while_the_next_step_is_computed() -> None:
    async def run() -> list[str]:
        master, device = master_of(1)
        log_results(master, device)
        while master.scheduler.busy:
            await one_step(master, device)
        return device.log

    log = asyncio.run(run())
    step = ["send [1]", "wait for [1]", "computed [1]"]
    assert log[:7] == [*step, step[0], "results of 1", *step[1:]]
    assert log[-2:] == ["computed [1]", "results of 1"]  # no step follows


@pytest.mark.parametrize("failing", ["plan", "scatter", "gather"])
def test_results_are_sent_whatever_becomes_of_the_next_step(failing: str) -> None:
    async def run() -> list[str]:
        master, device = master_of(1)
        log_results(master, device)
        await one_step(master, device)
        error = WorkerLostError("injected")
        owner = master.scheduler if failing == "plan" else device
        refusal = nullcontext() if failing == "gather" else patch.object(owner, failing, side_effect=error)
        with refusal, pytest.raises(WorkerLostError):
            await one_step(master, device, error)
        return device.log

    assert asyncio.run(run()).count("results of 1") == 1


def test_results_do_not_wait_for_a_change_of_the_group() -> None:
    async def run() -> list[str]:
        master, device = master_of(1)
        log_results(master, device)
        step = asyncio.create_task(master.step())
        await until(lambda: device.sent)
        master.membership.due = True  # type: ignore[misc]
        device.finish()
        await step
        await one_step(master, device)
        return device.log

    assert asyncio.run(run())[2:5] == ["computed [1]", "results of 1", "change"]
