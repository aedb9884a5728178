"""PendingWorkers: workers that are not in a group yet. They are placed and load their model in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray.exceptions import RayError, RayTaskError

from actors.worker_factory import WorkerFactory
from actors.worker_handle import WorkerHandle
from lopa_ray.errors import LopaError, WorkerLostError

MAX_FAILURES = 8
"""Failures in a row, without a worker that joined in between, after which no more are created."""

FIRST_PAUSE_S = 0.5
"""Between a failure and the next attempt; doubled with every further failure."""

LONGEST_PAUSE_S = 20.0


class PendingWorkers:
    """Creates workers until the target number is pending. A failed worker is created again, a few times."""

    def __init__(
        self,
        factory: WorkerFactory,
        load_timeout_s: float,
        on_ready: Callable[[], None],
    ) -> None:
        """`on_ready` is called when a worker may be taken. A worker may wait for its place for ever: that is the
        demand which Ray's autoscaler sees. `load_timeout_s` counts from the moment when it has one."""
        self._factory = factory
        self._load_timeout_s = load_timeout_s
        self._on_ready = on_ready
        self._tasks: list[asyncio.Task[WorkerHandle | None]] = []
        """One per worker; done when the worker has its model, which is the result."""
        self._failures = 0
        self.last_error: LopaError | None = None
        """Why the last attempt failed; None once a worker joined after it."""

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def ready(self) -> bool:
        """A worker may be taken."""
        return any(task.done() for task in self._tasks)

    def set_target(self, number: int) -> None:
        """Have that many workers pending: create more, or cancel the ones created last."""
        while len(self._tasks) > max(number, 0):
            self._cancel(self._tasks.pop())
        while len(self._tasks) < number and self._failures < MAX_FAILURES:
            self._tasks.append(asyncio.create_task(self._bring_up()))

    def take_ready(self) -> list[WorkerHandle]:
        """The workers that have loaded the model. The caller reports on them: `record_joined`, `record_failure`
        or both."""
        ready = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        return [worker for task in ready if (worker := task.result()) is not None]

    def record_joined(self) -> None:
        """The workers that were taken are in the group."""
        self._failures = 0
        self.last_error = None

    def record_failure(self, error: LopaError) -> None:
        """A worker did not get into the group."""
        self._failures += 1
        self.last_error = error

    def reset_failures(self) -> None:
        """Try again, however many attempts have failed."""
        self._failures = 0

    def close(self) -> None:
        """Cancel all."""
        self.set_target(0)

    async def _bring_up(self) -> WorkerHandle | None:
        """A worker that has its model; None after too many failures."""
        while self._failures < MAX_FAILURES:
            if self._failures:
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))
            worker = self._factory.create()
            try:
                await worker.wait_until_placed()
                await self._load_in_time(worker)
            except asyncio.CancelledError:
                self._factory.kill(worker)
                raise
            except (RayError, LopaError) as error:
                self._factory.kill(worker)
                cause = error.cause if isinstance(error, RayTaskError) else error
                named = WorkerLostError(f"a new worker failed: {type(cause).__name__}: {cause}")
                self.record_failure(cause if isinstance(cause, LopaError) else named)
            else:
                self._on_ready()
                return worker
        self._on_ready()
        return None

    async def _load_in_time(self, worker: WorkerHandle) -> None:
        try:
            await asyncio.wait_for(self._factory.load_model(worker), self._load_timeout_s)
        except TimeoutError:
            raise WorkerLostError(
                f"a new worker did not load the model within {self._load_timeout_s:g} s"
            ) from None

    def _cancel(self, task: asyncio.Task[WorkerHandle | None]) -> None:
        if not task.done():
            task.cancel()
        elif (worker := task.result()) is not None:
            self._factory.kill(worker)
