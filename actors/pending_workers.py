"""Recruits: workers on their way into a group. They are placed and load their model in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ray.exceptions import RayError, RayTaskError

from actors.worker_handle import WorkerHandle
from lopa_ray.errors import LopaError, WorkerLostError

ATTEMPTS = 8
"""Failures in a row, without a worker that came in between, after which no more are hired."""

FIRST_PAUSE_S = 0.5
"""Between a failure and the next attempt; doubled with every further failure."""

LONGEST_PAUSE_S = 20.0


class PendingWorkers:
    """Hires workers until as many are on their way as are wanted. Failures are tried again, a few times."""

    def __init__(
        self,
        hire: Callable[[], WorkerHandle],
        fire: Callable[[WorkerHandle], None],
        load: Callable[[WorkerHandle], Coroutine[Any, Any, object]],
        load_timeout_s: float,
        on_ready: Callable[[], None],
    ) -> None:
        """`load` has a worker load its model, `on_ready` is called when one may be taken. A worker may wait for
        its place for ever: that is the demand which Ray's autoscaler sees. `load_timeout_s` counts from then on."""
        self._hire = hire
        self._fire = fire
        self._load_model = load
        self._load_timeout_s = load_timeout_s
        self._on_ready = on_ready
        self._coming: list[asyncio.Task[WorkerHandle | None]] = []
        """One per worker; done when the worker has its model, which is the result."""
        self._failures = 0
        self.problem: LopaError | None = None
        """Why the last attempt failed; None once a worker came in after it."""

    def __len__(self) -> int:
        return len(self._coming)

    @property
    def ready(self) -> bool:
        """A worker may be taken."""
        return any(task.done() for task in self._coming)

    def want(self, number: int) -> None:
        """Have that many on their way: hire more, or withdraw those who came last."""
        while len(self._coming) > max(number, 0):
            self._withdraw(self._coming.pop())
        while len(self._coming) < number and self._failures < ATTEMPTS:
            self._coming.append(asyncio.create_task(self._recruit()))

    def take(self) -> list[WorkerHandle]:
        """Those who have loaded the model. The caller says what became of them: `came_in`, `failed` or both."""
        ready = [task for task in self._coming if task.done()]
        self._coming = [task for task in self._coming if not task.done()]
        return [worker for task in ready if (worker := task.result()) is not None]

    def came_in(self) -> None:
        """Those who were taken are at work."""
        self._failures = 0
        self.problem = None

    def failed(self, error: LopaError) -> None:
        """One did not get in."""
        self._failures += 1
        self.problem = error

    def start_over(self) -> None:
        """Try again, however often it has failed."""
        self._failures = 0

    def close(self) -> None:
        """Withdraw all."""
        self.want(0)

    async def _recruit(self) -> WorkerHandle | None:
        """A worker that has its model; None after too many failures."""
        while self._failures < ATTEMPTS:
            if self._failures:
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))
            worker = self._hire()
            try:
                await worker.placed()
                await self._load(worker)
            except asyncio.CancelledError:
                self._fire(worker)
                raise
            except (RayError, LopaError) as error:
                self._fire(worker)
                cause = error.cause if isinstance(error, RayTaskError) else error
                named = WorkerLostError(f"a new worker failed: {type(cause).__name__}: {cause}")
                self.failed(cause if isinstance(cause, LopaError) else named)
            else:
                self._on_ready()
                return worker
        self._on_ready()
        return None

    async def _load(self, worker: WorkerHandle) -> None:
        try:
            await asyncio.wait_for(self._load_model(worker), self._load_timeout_s)
        except TimeoutError:
            raise WorkerLostError(
                f"a new worker did not load the model within {self._load_timeout_s:g} s"
            ) from None

    def _withdraw(self, task: asyncio.Task[WorkerHandle | None]) -> None:
        if not task.done():
            task.cancel()
        elif (worker := task.result()) is not None:
            self._fire(worker)
