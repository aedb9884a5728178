"""PendingWorkers: workers that are not in a group yet. They are placed and load their model in the background."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.exceptions import OutOfMemoryError, RayError

from actors.calls.actor_errors import cause_of, describe_death, is_death
from actors.calls.rpc import is_answered
from actors.calls.worker_handle import WorkerHandle, WorkerInfo
from actors.group.start_phases import StartPhases
from actors.workers.worker_factory import WorkerFactory
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.errors import LopaError, TransferError, WorkerLostError

logger = logging.getLogger("lopa.group")

MAX_FAILURES = 8  # failures in a row per pending worker after which no more workers are created
START_FAILURES = 4  # the same while a group starts, since requests wait for it: the start has failed then
FIRST_PAUSE_S = 0.5  # before the next attempt; doubled when each pending worker has failed once more

LONGEST_PAUSE_S = 20.0

PING_PERIOD_S = 1.0  # ping interval while a worker loads its model


@dataclass(slots=True, eq=False)
class _PendingWorker:
    """One worker on its way, or the next worker in its place."""

    task: asyncio.Task[WorkerHandle | None] = field(init=False)  # None: no further attempt is made
    failures: int = 0
    is_placed: bool = False


class PendingWorkers:
    """Creates workers until the target number is pending. A failed worker is created again, a few times."""

    def __init__(self, factory: WorkerFactory, group: GroupSettings, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when a worker may be taken. A worker may wait for its place without limit, because Ray's
        autoscaler sees the waiting workers as demand; `group.start_timeout_s` begins when it has one."""
        self._factory = factory
        self._group = group
        self._on_ready = on_ready
        self._pending: list[_PendingWorker] = []
        self._target = 0
        self._failures = 0
        self.last_error: LopaError | None = None  # of the last attempt; None once a worker joined after it
        self._starting: StartPhases | None = None  # the phases of a group that has not begun yet
        self._progress = asyncio.Event()
        self._fatal: LopaError | None = None  # an error that another attempt would have as well
        self.start_s: float
        """Seconds from the placement of the last worker that got ready to its loaded model; known with `info`."""
        self.info: WorkerInfo  # of the model, once a worker has loaded it
        self._placed_by = math.inf
        """The time by which workers of a starting group should have a place (`time.monotonic`); known when one has."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def ready(self) -> bool:
        return any(pending.task.done() for pending in self._pending)

    async def until_start(self, phases: StartPhases) -> None:
        """Wait for the workers that a group can begin with: until one is ready, and each of the others is as well, has
        failed once, or has no place though another has had one for `group.loading_hung_after_s`. Raises the error of a
        worker that raised one, or WorkerLostError when workers are lost again and again."""
        self._starting = phases
        while not self.ready or any(map(self._is_awaited, self._pending)):
            if self._fatal is not None:
                raise self._fatal
            if self.last_error is not None and self._failures >= START_FAILURES * self._target:
                raise self.last_error
            self._progress.clear()
            await self._progress.wait()
        self._starting = None
        phases.end("model")

    def _is_awaited(self, pending: _PendingWorker) -> bool:
        on_its_way = pending.is_placed or time.monotonic() < self._placed_by
        return not pending.task.done() and not pending.failures and on_its_way

    def set_target(self, number: int) -> None:
        """Have that many workers pending: create more, or cancel the workers created last."""
        self._target = max(number, 0)
        while len(self._pending) > self._target:
            self._cancel(self._pending.pop().task)
        while len(self._pending) < self._target and not self._given_up:
            pending = _PendingWorker()
            pending.task = asyncio.create_task(self._bring_up(pending))
            pending.task.add_done_callback(self._report_ready)
            self._pending.append(pending)

    @property
    def _given_up(self) -> bool:
        return self._failures >= MAX_FAILURES * max(self._target, 1)

    def take_ready(self) -> list[WorkerHandle]:
        """The workers that have loaded the model; to be followed by `record_joined`, `record_failure` or both."""
        ready = [pending.task for pending in self._pending if pending.task.done()]
        self._pending = [pending for pending in self._pending if not pending.task.done()]
        return [worker for task in ready if (worker := task.result()) is not None]

    def record_joined(self) -> None:
        self._failures = 0
        self.last_error = None

    def record_failure(self, error: LopaError) -> None:
        logger.warning(f"a new worker did not get into its group: {error}")
        self._failures += 1
        self.last_error = error

    def reset_failures(self) -> None:
        """Try again, however many attempts have failed."""
        self._failures = 0

    async def _bring_up(self, pending: _PendingWorker) -> WorkerHandle | None:
        """A worker that has its model; None after too many failures."""
        while not self._given_up:
            if self._failures:
                doubled = (self._failures - 1) // max(self._target, 1)
                await asyncio.sleep(min(FIRST_PAUSE_S * 2**doubled, LONGEST_PAUSE_S))
            worker = self._factory.create()
            try:
                await worker.ping()
                self._record_place(pending)
                await self._load_in_time(worker, self._group.loading_hung_after_s * 2**pending.failures)
            except asyncio.CancelledError:
                self._factory.kill(worker)
                raise
            except (RayError, LopaError) as error:
                self._factory.kill(worker)
                pending.failures += 1
                self._record_error(error)
            else:
                return worker
        return None

    def _report_ready(self, _: asyncio.Task[WorkerHandle | None]) -> None:
        self._progress.set()
        self._on_ready()

    def _record_place(self, pending: _PendingWorker) -> None:
        pending.is_placed = True
        if self._placed_by == math.inf:
            wait_s = self._group.loading_hung_after_s
            self._placed_by = time.monotonic() + wait_s
            asyncio.get_running_loop().call_later(wait_s, self._progress.set)

    def _record_error(self, error: RayError | LopaError) -> None:
        if is_death(error):
            named: LopaError = WorkerLostError(f"a new worker died: {describe_death(error)}")
        else:
            named = cause_of("a new worker", "load the model", error)
        if not isinstance(named, WorkerLostError | TransferError) or isinstance(error, OutOfMemoryError):
            self._fatal = named
        self.record_failure(named)
        self._progress.set()

    async def _load_in_time(self, worker: WorkerHandle, silence_s: float) -> None:
        """Raises what loading raises, and WorkerLostError if it takes too long or a shard does not answer that long."""
        loading = asyncio.ensure_future(self._load(worker))
        ends = time.monotonic() + self._group.start_timeout_s
        try:
            while not (await asyncio.wait((loading,), timeout=PING_PERIOD_S))[0]:
                asked = worker.ping()
                if not await is_answered(asked, silence_s):
                    silence = f"did not answer for {silence_s:g} s while it loaded the model"
                    raise WorkerLostError(f"a new worker {silence}")
                asked.result()
                if time.monotonic() > ends:
                    limit = f"{self._group.start_timeout_s:g} s"
                    raise WorkerLostError(f"a new worker did not load the model within {limit}")
            loading.result()
        finally:
            loading.cancel()

    async def _load(self, worker: WorkerHandle) -> None:
        began = time.monotonic()
        await asyncio.gather(*worker.call("prepare"))
        if self._starting is not None:
            self._starting.end("workers")
        self.info = await self._factory.load_model(worker)
        self.start_s = time.monotonic() - began

    def _cancel(self, task: asyncio.Task[WorkerHandle | None]) -> None:
        if not task.done():
            task.cancel()
        elif (worker := task.result()) is not None:
            self._factory.kill(worker)
