"""EventLoopThread: an asyncio event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from lopa_ray.errors import ClusterError

T = TypeVar("T")

CLOSED = "this engine is closed; make a new one"


class EventLoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lopa-engine", daemon=True)
        self._closed = False
        self._lock = threading.Lock()  # while a coroutine is submitted: none arrives at a loop that has ended
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine. Cancelling the future cancels it; `close` does, too. Raises ClusterError when closed."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClusterError(CLOSED)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An interrupt, as by Ctrl-C, cancels it. Raises ClusterError when closed."""
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise ClusterError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            function()
        else:
            self.run(_called(function))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if threading.current_thread() is self._thread:  # the garbage collector may run in this thread
            self._loop.stop()
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _called(function: Callable[[], None]) -> None:
    function()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
