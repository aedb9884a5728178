"""The connections on which a group's plans go to the workers, and their reports come back: both ends.

Everything else that a worker is asked for is a call of its actor. A step is not: such a call passes six threads and
two event loops, which is milliseconds beside a forward that may take four, and a socket a few tenths of one.
"""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import secrets
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import ray.util

from lopa_ray.errors import TransferError

HEADER = struct.Struct("!Q")
"""Before each message: how many bytes it has. A message is a pickled plan, report or exception."""

TOKEN_BYTES = 32

READY = b"\x01"
"""What the master answers to a token that it has given out."""


CHECK_S = 1.0
"""How long a step may take before Ray is asked whether the worker is alive, and between two such questions. A process
that ends closes its connection; a node that is gone does not."""


@dataclass(frozen=True, slots=True)
class StepAddress:
    """The address of a worker's master, and the token that the worker sends first. Ray transports both to the worker.
    The master unpickles nothing from a connection without the token.
    """

    host: str
    port: int
    token: bytes = field(repr=False)


class StepThread:
    """A worker's end: executes the plans that come, one after the other, until the connection ends."""

    def __init__(self, address: StepAddress, execute: Callable[[Any], Any], timeout_s: float) -> None:
        """Connect within `timeout_s` seconds. `execute` makes a report of a plan. Raises TransferError if the master is
        not reached."""
        self._execute = execute
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(address.token)
            if self._socket.recv(len(READY)) != READY:
                raise OSError("the master refused the token")
        except OSError as error:
            raise TransferError(
                f"a worker does not reach its master at {address.host}:{address.port}: {error}"
            ) from None
        self._socket.settimeout(None)
        self._start(self._serve, "steps")

    @staticmethod
    def _start(target: Callable[[], None], name: str) -> None:
        # The new thread gets the context variables of this one, including torch's.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(target,), name=name, daemon=True).start()

    def _serve(self) -> None:
        # A broken connection means that this actor ends: Ray ends it if the master is dead, else the master does.
        with self._socket, suppress(OSError):
            for message in self._messages():
                self._answer(partial(self._run, message))

    def _messages(self) -> Iterator[bytes]:
        with self._socket.makefile("rb") as messages:
            while len(header := messages.read(HEADER.size)) == HEADER.size:
                yield messages.read(*HEADER.unpack(header))

    def _run(self, message: bytes) -> Any:
        return self._execute(pickle.loads(message))

    def _answer(self, report: Callable[[], Any]) -> None:
        try:
            answer = pickle.dumps(report(), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            answer = _pickled(error)
        self._socket.sendall(HEADER.pack(len(answer)) + answer)


class OverlappingStepThread(StepThread):
    """The same with two threads: while one waits for the device to finish a step, the other begins the next one."""

    def __init__(
        self, address: StepAddress, launch: Callable[[Any], Callable[[], Any]], timeout_s: float
    ) -> None:
        """`launch` begins the step of a plan and returns what waits for its report. Raises as `StepThread`."""
        self._launched: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        super().__init__(address, launch, timeout_s)

    def _serve(self) -> None:
        self._start(self._report, "reports")
        try:
            with suppress(OSError):
                for message in self._messages():
                    self._launched.put(self._launch(message))
        finally:
            self._launched.put(None)

    def _launch(self, message: bytes) -> Callable[[], Any]:
        try:
            report: Callable[[], Any] = self._run(message)
        except Exception as error:
            return partial(_raise, error)
        return report

    def _report(self) -> None:
        with self._socket, suppress(OSError):
            while (report := self._launched.get()) is not None:
                self._answer(report)


def _raise(error: Exception) -> None:
    raise error


def _pickled(error: Exception) -> bytes:
    """The error with its traceback as a note; an error like it, where it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        message = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        # A future takes any exception but StopIteration.
        if isinstance(pickle.loads(message), Exception) and not isinstance(error, StopIteration):
            return message
    except Exception:
        pass
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"), pickle.HIGHEST_PROTOCOL)


class ConnectionLostError(Exception):
    """The connection to a worker broke, though it is alive."""


class StepConnection(asyncio.Protocol):
    """To one worker, or one shard of one. It answers its steps in the order in which they were sent."""

    def __init__(self, admit: Callable[[bytes, StepConnection], Any]) -> None:
        """`admit`: the actor that a token was given to, or None."""
        self._admit = admit
        self._actor: Any = None
        self._transport: Any = None
        self._received = bytearray()
        self._answers: deque[asyncio.Future[Any]] = deque()
        """Of the steps that are still to be answered, the oldest first."""
        self._began = 0.0
        """When the worker could begin the oldest of them, as `time.monotonic`."""
        self._check: asyncio.Task[None] | None = None
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Nothing is unpickled before the token was shown."""
        self._received += data
        if self._actor is None and len(self._received) >= TOKEN_BYTES:
            token = bytes(self._received[:TOKEN_BYTES])
            del self._received[:TOKEN_BYTES]
            self._actor = self._admit(token, self)
            if self._actor is None:
                self._transport.abort()
                return
            self._transport.write(READY)
        while self._actor is not None and len(self._received) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._received)
            end = HEADER.size + size
            if len(self._received) < end:
                return
            with memoryview(self._received) as received:
                message = bytes(received[HEADER.size : end])
            del self._received[:end]
            self._settle(pickle.loads(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._ask_ray()

    def execute(self, message: bytes) -> asyncio.Future[Any]:
        """Send a pickled plan; the future is the report, or what the worker raised, or why it is lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        if not self._answers:
            self._began = time.monotonic()
        self._answers.append(answer)
        if self._closed:
            self._ask_ray()
        else:
            self._transport.writelines((HEADER.pack(len(message)), message))
        return answer

    def check(self) -> None:
        """Ask Ray whether the worker is alive, if a step takes long."""
        if self._answers and time.monotonic() > self._began + CHECK_S:
            self._ask_ray()

    def close(self) -> None:
        """End the connection."""
        self._transport.abort()

    def _ask_ray(self) -> None:
        if self._answers and (self._check is None or self._check.done()):
            self._check = asyncio.create_task(self._find_cause())

    async def _find_cause(self) -> None:
        """Fail all steps, if the worker is dead or not connected any more."""
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


class StepServer:
    """The master's end: listens for the workers of a group. To be used inside of the master's event loop."""

    def __init__(self) -> None:
        """Without a port; see `address`."""
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._tokens: dict[Any, bytes] = {}
        self._connections: dict[Any, StepConnection] = {}

    async def address(self, actor: Any) -> StepAddress:
        """Return the address to which that actor connects; it is the same in each call."""
        if self._server is None:
            host = ray.util.get_node_ip_address()
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: StepConnection(self._admit), host, 0)
            self._watch = asyncio.create_task(self._check())
        host, port, *_ = self._server.sockets[0].getsockname()
        return StepAddress(host, port, self._tokens.setdefault(actor, secrets.token_bytes(TOKEN_BYTES)))

    def execute(self, actor: Any, message: bytes) -> asyncio.Future[Any]:
        """See `StepConnection.execute`; to an actor that has connected."""
        return self._connections[actor].execute(message)

    def forget(self, actor: Any) -> None:
        """End the connection of an actor that leaves."""
        self._tokens.pop(actor, None)
        connection = self._connections.pop(actor, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """End all connections, and take no further ones."""
        for actor in [*self._tokens]:
            self.forget(actor)
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()

    def _admit(self, token: bytes, connection: StepConnection) -> Any:
        for actor, given in self._tokens.items():
            if secrets.compare_digest(given, token):
                self._connections[actor] = connection
                return actor
        return None

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            for connection in self._connections.values():
                connection.check()


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """The worker was killed and its answer is not awaited any more. Reading the error keeps asyncio from logging it."""
    if not answer.cancelled():
        answer.exception()
