"""RPCBatch: one call to each of several workers, and the wait for their replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from actors.calls.actor_errors import ConnectionLostError, describe_death, is_death
from actors.calls.worker_handle import WorkerHandle

REASON_TIMEOUT_S = 1.0  # how long Ray may take to say why a worker has died; the group waits


class RPCBatch:
    """A call per shard, by worker in order of rank. To be made inside the event loop."""

    def __init__(self, calls: Mapping[WorkerHandle, tuple[Any, ...]]) -> None:
        """`calls`: Ray's references, or futures."""
        self._replies = {worker: tuple(map(_as_future, by_shard)) for worker, by_shard in calls.items()}

    def of(self, workers: Collection[WorkerHandle]) -> RPCBatch:
        return RPCBatch({worker: calls for worker, calls in self._replies.items() if worker in workers})

    async def wait(
        self,
        timeout: float,
        on_error: Callable[[], None] = lambda: None,
        without: Collection[WorkerHandle] = (),
    ) -> None:
        """Wait until the calls of all workers that are not in `without` are done, or for `timeout` seconds. `on_error`
        is called after errors; it has to release the workers that wait for a failed one."""
        deadline = time.monotonic() + timeout
        pending = {task for worker, tasks in self._replies.items() if worker not in without for task in tasks}
        while pending:
            left = max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            if not pending or not any(task.exception() for task in done):
                return
            on_error()
            self._release_peers()

    def _release_peers(self) -> None:
        """A call that failed may not even have begun, and the worker's other shards wait for that shard."""
        for worker, tasks in self._replies.items():
            if len(worker.shards) == len(tasks) > 1:
                for shard, task in zip(worker.shards, tasks, strict=True):
                    if task.done() and task.exception() is not None:
                        shard.leave_groups.remote()

    def unanswered(self) -> list[WorkerHandle]:
        return [worker for worker, tasks in self._replies.items() if not all(task.done() for task in tasks)]

    def results(self) -> Iterator[tuple[WorkerHandle, tuple[Any, ...], list[BaseException]]]:
        """The answers of each worker's shards, or what they raised. For calls that are done."""
        for worker, tasks in self._replies.items():
            errors = [error for task in tasks if task.done() and (error := task.exception()) is not None]
            yield worker, () if errors else tuple(task.result() for task in tasks if task.done()), errors


async def death_of_worker(worker: WorkerHandle, error: BaseException) -> str:
    """`describe_death`, for a worker. A connection that breaks does not say why, and Ray may know."""
    if isinstance(error, ConnectionLostError):
        calls = [_as_future(call) for call in worker.call("ping")]
        await asyncio.wait(calls, timeout=REASON_TIMEOUT_S)
        reasons = [call.exception() for call in calls if call.done()]
        error = next((reason for reason in reasons if reason is not None and is_death(reason)), error)
    return describe_death(error)


async def is_answered(asked: asyncio.Future[Any], timeout_s: float) -> bool:
    """Whether a call is done within that time; otherwise it is cancelled."""
    # Twice half of the time: if this process itself was stopped, one wait is over at once, and not both.
    for _ in range(2):
        await asyncio.wait((asked,), timeout=timeout_s / 2)
        if asked.done():
            return True
    asked.cancel()
    return False


def _as_future(call: Any) -> asyncio.Future[Any]:
    future = call if isinstance(call, asyncio.Future) else asyncio.wrap_future(call.future())
    future.add_done_callback(_retrieve)
    return future


def _retrieve(answer: asyncio.Future[Any]) -> None:
    # A killed worker's call may fail after nothing awaits it any more; asyncio would log the error as never retrieved.
    if not answer.cancelled():
        answer.exception()
