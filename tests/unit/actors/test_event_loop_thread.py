"""The thread in which the engine of synchronous programs runs its event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors.client.event_loop_thread import EventLoopThread
from lopa_ray.errors import ClusterError


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def refuse() -> None:
    raise ValueError("no")


def test_it_returns_results_and_raises_errors() -> None:
    thread = EventLoopThread()
    assert thread.run(double(4)) == 8
    with pytest.raises(ValueError, match="no"):
        thread.run(refuse())
    thread.close()


def test_a_function_is_called_in_the_thread_of_the_loop_even_from_there() -> None:
    thread = EventLoopThread()
    called: list[str] = []

    def call() -> None:
        called.append(threading.current_thread().name)

    thread.call(call)
    thread.call(lambda: thread.call(call))
    thread.close()
    assert called == ["lopa-engine"] * 2


def test_closing_cancels_what_runs_and_refuses_what_comes_later() -> None:
    thread = EventLoopThread()
    began = threading.Event()
    errors: list[Exception] = []

    async def wait_forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait_in_another_thread() -> None:
        try:
            thread.run(wait_forever())
        except Exception as error:
            errors.append(error)

    waiting = threading.Thread(target=wait_in_another_thread)
    waiting.start()
    assert began.wait(10)
    thread.close()
    thread.close()
    waiting.join(10)
    assert [type(error) for error in errors] == [ClusterError]
    with pytest.raises(ClusterError, match="closed"):
        thread.run(double(1))


def test_it_may_be_closed_by_its_own_thread() -> None:
    """As when the garbage collector finds an engine there."""
    thread = EventLoopThread()
    thread.start(_call(thread.close))
    thread._thread.join(10)
    assert not thread._thread.is_alive()


async def _call(close: object) -> None:
    assert callable(close)
    close()
