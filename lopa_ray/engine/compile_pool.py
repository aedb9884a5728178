"""CompilePool: calls in a few processes, shared fairly between clients, each until it ends or is cancelled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lopa_ray.errors import SettingsError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError

MAX_PROCESSES = 4  # calls that run at the same time
MAX_PER_CLIENT = 2  # calls of one client that run at the same time: the others find a process free
MAX_IDLE = 1  # processes that are kept for the next call: one takes 0.3 s to start, and some 50 MB


class Call:
    def __init__(self, method: str, argument: object, client: str) -> None:
        self.method, self.argument, self.client = method, argument, client
        self.future: Future[Any] = Future()
        self.process: LimitedProcess | None = None
        self.cancelled = False


class CompilePool:
    """Runs calls of one target's methods. Thread-safe; no thread runs while it is idle."""

    def __init__(self, new_target: Callable[[], object], limit_s: float) -> None:
        """`new_target` makes the target of a `LimitedProcess`. `limit_s`: of each call."""
        self._new_target, self._limit_s = new_target, limit_s
        self._lock = threading.Lock()
        self._waiting: list[Call] = []
        self._running: list[Call] = []
        self._idle: list[LimitedProcess] = []

    def start(self, method: str, argument: object, client: str) -> Call:
        """Begin a call as soon as a process is free for the client. Its future has the result, SettingsError for a call
        that needs more time or memory, or what `LimitedProcess.call` raises."""
        call = Call(method, argument, client)
        with self._lock:
            self._waiting.append(call)
            self._start_waiting()
        return call

    def cancel(self, call: Call) -> None:
        """Drop a call that waits, or end the process of a call that runs. A call that has ended stays as it is."""
        with self._lock:
            call.cancelled = True
            if call in self._waiting:
                self._waiting.remove(call)
            elif call.process is not None:
                call.process.kill()
        call.future.cancel()

    def _start_waiting(self) -> None:
        """Run what may run, with the lock held: first the calls of clients that have the fewest running."""
        while self._waiting and len(self._running) < MAX_PROCESSES:
            running = Counter(call.client for call in self._running)
            call = min(self._waiting, key=lambda call: running[call.client])
            if running[call.client] >= MAX_PER_CLIENT:
                return
            self._waiting.remove(call)
            self._running.append(call)
            threading.Thread(target=self._run, args=(call,), name="compile", daemon=True).start()

    def _run(self, call: Call) -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            result = self._result(call)
        except Exception as error:
            failure = error
        with self._lock:
            process, call.process = call.process, None
            self._running.remove(call)
            if process is not None and process.alive and len(self._idle) < MAX_IDLE:
                self._idle.append(process)
                process = None
            self._start_waiting()
        if process is not None:
            process.close()
        # A future that was cancelled takes no result.
        if call.future.set_running_or_notify_cancel():
            if failure is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(failure)

    def _result(self, call: Call) -> Any:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or LimitedProcess(self._new_target())
        with self._lock:
            call.process = process
            if call.cancelled:
                return None
        try:
            return process.call(call.method, call.argument, self._limit_s)
        except ProcessLimitError as error:
            raise SettingsError(
                f"the pattern or schema is too large: {error} to compile; use fewer and shorter repetitions, less "
                "nesting, or a simpler schema"
            ) from None
