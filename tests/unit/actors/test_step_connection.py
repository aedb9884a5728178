"""The connections on which plans and reports travel, without Ray."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.calls.actor_errors import ConnectionLostError, cause_of, is_death
from actors.calls.worker_handle import WorkerHandle
from actors.steps import step_connection
from actors.steps.step_thread import HEADER, StepAddress, StepThread
from actors.steps.step_transport import StepTransport
from lopa_ray.errors import ScoreError, TransferError, WorkerError, WorkerMemoryError

TIMEOUT_S = 10.0


class FakeActor:
    """Stands in for a worker's actor, as Ray sees it: it answers, or is dead, or hangs."""

    def __init__(self, answer: Callable[[], Awaitable[None]] | None = None) -> None:
        self.pings = 0
        self.answer = answer
        self.ping = SimpleNamespace(remote=self._ping)

    async def _ping(self) -> None:
        self.pings += 1
        if self.answer is not None:
            await self.answer()


async def _dead() -> None:
    raise ActorDiedError


@asynccontextmanager
async def connected(
    launch: Callable[[Any], Callable[[], Any]],
    answer: Callable[[], Awaitable[None]] | None = None,
    *,
    overlaps: bool = False,
) -> AsyncIterator[tuple[StepTransport, FakeActor, StepThread]]:
    """A master's transport, and a worker in a thread that is connected to it."""
    server, actor = StepTransport(), FakeActor(answer)
    try:
        address = await server.address(actor)
        assert address is not None
        thread = await asyncio.to_thread(StepThread, address, launch, TIMEOUT_S, overlaps=overlaps)
        yield server, actor, thread
    finally:
        server.forget(WorkerHandle((actor,)))
        server.close()


def send(server: StepTransport, actor: FakeActor, plan: Any) -> asyncio.Future[Any]:
    batch = server.scatter([WorkerHandle((actor,))], [plan])
    [(answer,)] = batch._replies.values()
    return answer


async def ask(server: StepTransport, actor: FakeActor, plan: Any) -> Any:
    return await asyncio.wait_for(send(server, actor, plan), TIMEOUT_S)


def at_once(execute: Callable[[Any], Any]) -> Callable[[Any], Callable[[], Any]]:
    """A step whose report is there when it was launched."""
    return lambda plan: partial(execute, plan)


def test_plans_come_and_reports_go_whatever_their_size() -> None:
    async def run() -> list[Any]:
        async with connected(at_once(lambda plan: plan * 2)) as (server, actor, _):
            return [await ask(server, actor, bytes(size)) for size in (0, 1, 5_000_000, 3)]

    assert [len(report) for report in asyncio.run(run())] == [0, 2, 10_000_000, 6]


class NotPicklableError(Exception):
    """Cannot be made again from what it says of itself."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (ScoreError("no numbers"), ScoreError, "no numbers"),
        (NotPicklableError("a", "b"), WorkerError, "worker 0 failed: RuntimeError: NotPicklableError: a b"),
        (StopIteration(), WorkerError, "worker 0 failed: RuntimeError: StopIteration"),
        (MemoryError("no room"), WorkerMemoryError, "lower num_branches"),
    ],
)
def test_what_a_worker_raises_comes_back_with_its_traceback(
    raised: Exception, kind: type[Exception], says: str
) -> None:
    def execute(plan: Any) -> Any:
        if plan == "fail":
            raise raised
        return plan

    async def run() -> BaseException:
        async with connected(at_once(execute)) as (server, actor, _):
            with pytest.raises(Exception) as caught:
                await ask(server, actor, "fail")
            assert await ask(server, actor, "next") == "next"
            assert not actor.pings
        return caught.value

    error = asyncio.run(run())
    assert not is_death(error)
    cause = cause_of("worker 0", "answer a step", error)
    assert type(cause) is kind and says in str(cause)
    if kind is ScoreError:
        assert "in execute" in "".join(error.__notes__)


class Unreadable:
    """Can be pickled, and not be made from that."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_report_that_cannot_be_read_is_a_lost_connection() -> None:
    async def run() -> None:
        async with connected(at_once(lambda plan: Unreadable())) as (server, actor, _):
            with pytest.raises(ConnectionLostError) as caught:
                await ask(server, actor, "plan")
            assert is_death(caught.value)

    asyncio.run(run())


def test_a_step_is_launched_while_the_device_computes_the_one_before() -> None:
    """The device finishes steps as the test says, and the answers come in the order of the plans."""
    log: list[str] = []
    launched = {name: threading.Event() for name in "ABC"}
    finished = {name: threading.Event() for name in "ABC"}

    def launch(plan: str) -> Callable[[], str]:
        log.append(f"launch {plan}")
        launched[plan].set()

        def report() -> str:
            assert finished[plan].wait(TIMEOUT_S)
            log.append(f"report {plan}")
            return plan.lower()

        return report

    async def run() -> None:
        async with connected(launch, overlaps=True) as (server, actor, _):
            first, second = (send(server, actor, plan) for plan in "AB")
            assert await asyncio.to_thread(launched["B"].wait, TIMEOUT_S)
            assert not first.done()
            finished["B"].set()  # a device does not, but its host may be told so early
            finished["A"].set()
            assert await asyncio.wait_for(first, TIMEOUT_S) == "a"
            third = send(server, actor, "C")
            assert await asyncio.wait_for(second, TIMEOUT_S) == "b"
            assert await asyncio.to_thread(launched["C"].wait, TIMEOUT_S)
            finished["C"].set()
            assert await asyncio.wait_for(third, TIMEOUT_S) == "c"

    asyncio.run(run())
    assert log[:2] == ["launch A", "launch B"]
    assert [entry for entry in log if "report" in entry] == ["report A", "report B", "report C"]


def test_an_error_of_one_step_in_flight_is_that_steps_answer() -> None:
    def launch(plan: str) -> Callable[[], str]:
        if plan == "no launch":
            raise ScoreError(plan)

        def report() -> str:
            if plan == "no report":
                raise ScoreError(plan)
            return plan

        return report

    async def run() -> list[Any]:
        async with connected(launch, overlaps=True) as (server, actor, _):
            plans = ("one", "no launch", "two", "no report", "three")
            answers = [send(server, actor, plan) for plan in plans]
            return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), TIMEOUT_S)

    one, no_launch, two, no_report, three = asyncio.run(run())
    assert (one, two, three) == ("one", "two", "three")
    assert isinstance(no_launch, ScoreError) and isinstance(no_report, ScoreError)
    assert (str(no_launch), str(no_report)) == ("no launch", "no report")


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_lost_worker_fails_all_its_steps_in_flight(overlaps: bool) -> None:
    threads = []

    def execute(_: Any) -> Callable[[], None]:
        threads[0]._socket.shutdown(socket.SHUT_RDWR)
        return lambda: None

    async def run() -> list[Any]:
        async with connected(execute, _dead, overlaps=overlaps) as (server, actor, thread):
            threads.append(thread)
            answers = [send(server, actor, number) for number in range(2)]
            return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), TIMEOUT_S)

    errors = asyncio.run(run())
    assert [type(error) for error in errors] == [ActorDiedError, ActorDiedError]
    assert all(map(is_death, errors))


def test_ray_is_asked_about_a_worker_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_connection, "CHECK_S", 0.02)
    release = asyncio.Event()

    async def dead_later() -> None:
        if release.is_set():
            await _dead()

    async def run() -> None:
        server, actor = StepTransport(), FakeActor(dead_later)
        address = await server.address(actor)
        assert address is not None
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(address.token)
        await reader.readexactly(1)
        answer = send(server, actor, None)  # a node that is gone closes no connection
        while actor.pings < 2:
            await asyncio.sleep(0.01)
        assert not answer.done()
        release.set()
        with pytest.raises(ActorDiedError):
            await asyncio.wait_for(answer, TIMEOUT_S)
        writer.close()
        server.close()

    asyncio.run(run())


def test_nothing_is_unpickled_for_a_stranger() -> None:
    async def run() -> None:
        async with connected(at_once(lambda plan: plan)) as (server, actor, _):
            address = await server.address(actor)
            assert address is not None
            assert address.token.hex() not in repr(address) and repr(address.token) not in repr(address)
            stranger: StepAddress = replace(address, token=bytes(len(address.token)))
            with pytest.raises(TransferError, match="does not reach its master"):
                await asyncio.to_thread(StepThread, stranger, print, TIMEOUT_S)
            reader, writer = await asyncio.open_connection(address.host, address.port)
            message = b"not a pickle"
            writer.write(stranger.token + HEADER.pack(len(message)) + message)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            assert await ask(server, actor, "plan") == "plan"
            server.forget(WorkerHandle((actor,)))  # its token is of no use any more
            with pytest.raises(TransferError):
                await asyncio.to_thread(StepThread, address, print, TIMEOUT_S)

    asyncio.run(run())


def test_steps_are_calls_where_ray_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    called: list[Any] = []

    async def run() -> None:
        answered = asyncio.get_running_loop().create_future()
        actor = SimpleNamespace(execute=SimpleNamespace(remote=lambda plan: called.append(plan) or answered))
        transport = StepTransport()
        assert await transport.address(actor) is None
        transport.scatter([WorkerHandle((actor,))], ["plan"])  # type: ignore[list-item]

    asyncio.run(run())
    assert called == ["plan"]
