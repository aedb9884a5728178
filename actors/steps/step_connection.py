"""StepConnection: a master's end of the connection to one worker, or to one shard of one."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import deque
from contextlib import suppress
from typing import Any

from actors.calls.actor_errors import ConnectionLostError
from actors.steps.step_thread import HEADER

CHECK_S = 1.0  # Ray is asked about a slow worker: no TCP connection closes when a node vanishes


class StepConnection:
    """Sends plans. The worker answers them in the order in which they were sent."""

    def __init__(self, actor: Any, writer: asyncio.StreamWriter) -> None:
        self._actor = actor
        self._writer = writer
        self._answers: deque[asyncio.Future[Any]] = deque()  # to the unanswered steps, the oldest first
        self._began = 0.0  # when the worker could begin the oldest of them, as `time.monotonic`
        self._closed = False
        self._asking: asyncio.Task[None] | None = None

    def execute(self, message: bytes) -> asyncio.Future[Any]:
        """Send a pickled plan; the future is the report, or what the worker raised, or why it is lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self._answers:
            self._began = time.monotonic()
        self._answers.append(answer)
        if self._closed:
            self._asking = asyncio.create_task(self._ask_ray())
        else:
            self._writer.writelines((HEADER.pack(len(message)), message))
        return answer

    async def receive(self, reader: asyncio.StreamReader) -> None:
        """Settle the steps with the reports that arrive, until the connection ends."""
        watch = asyncio.create_task(self._watch())
        try:
            with suppress(Exception):  # a report that cannot be read ends the connection, too
                while True:
                    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                    self._settle(pickle.loads(await reader.readexactly(size)))
        finally:
            self._closed = True
            watch.cancel()
            self.close()
        await self._ask_ray()

    def close(self) -> None:
        self._writer.transport.abort()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if time.monotonic() > self._began + CHECK_S:
                await self._ask_ray()

    async def _ask_ray(self) -> None:
        """Fail all steps, if the worker is dead or not connected any more."""
        if not self._answers:
            return
        cause: Exception | None = None
        try:
            await self._actor.ping.remote()
        except Exception as error:
            cause = error
        else:
            if self._closed:
                cause = ConnectionLostError("the connection to it broke")
        while cause is not None and self._answers:
            self._settle(cause)

    def _settle(self, result: Any) -> None:
        """The oldest step is answered, or lost."""
        if not self._answers:
            return
        answer = self._answers.popleft()
        self._began = time.monotonic()
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
