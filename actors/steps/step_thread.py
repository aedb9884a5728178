"""StepThread: a worker's end of the connection on which plans come from its master, and reports go back."""

from __future__ import annotations

import contextvars
import pickle
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from lopa_ray.errors import TransferError

HEADER = struct.Struct("!Q")  # the size in bytes, before each message: a pickled plan, report or exception
READY = b"\x01"  # the master's answer to a token that it has given out


@dataclass(frozen=True, slots=True)
class StepAddress:
    """Address of a master, and the token that a worker sends first: without it the master unpickles nothing."""

    host: str
    port: int
    token: bytes = field(repr=False)


class StepThread:
    """Executes the plans that come, one after the other, until the connection ends. With `overlaps` it has two threads:
    while one waits for the device to finish a step, the other begins the next step."""

    def __init__(
        self,
        address: StepAddress,
        launch: Callable[[Any], Callable[[], Any]],
        timeout_s: float,
        *,
        overlaps: bool = False,
    ) -> None:
        """Connect within `timeout_s` seconds. `launch` begins the step of a plan and returns a function that waits for
        its report. Raises TransferError if the master is not reached."""
        self._launch = launch
        self._launched: SimpleQueue[Callable[[], Any]] | None = SimpleQueue() if overlaps else None
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(address.token)
            if self._socket.recv(len(READY)) != READY:
                raise OSError("the master refused the token")
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise TransferError(f"a worker does not reach its master at {where}: {error}") from None
        self._socket.settimeout(None)
        for run in [self._serve, self._answer_launched] if overlaps else [self._serve]:
            # The new thread gets the context variables of this thread, including torch's.
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(run,), name="steps", daemon=True).start()

    def _serve(self) -> None:
        # A broken connection means that this actor ends: Ray ends it if the master is dead, else the master does.
        with self._socket, suppress(OSError), self._socket.makefile("rb") as messages:
            while len(header := messages.read(HEADER.size)) == HEADER.size:
                report = self._begin(messages.read(*HEADER.unpack(header)))
                if self._launched is None:
                    self._answer(report)
                else:
                    self._launched.put(report)

    def _answer_launched(self) -> None:
        assert self._launched is not None
        with suppress(OSError):
            while True:
                self._answer(self._launched.get())

    def _begin(self, message: bytes) -> Callable[[], Any]:
        try:
            return self._launch(pickle.loads(message))
        except Exception as error:
            return partial(_raise, error)

    def _answer(self, report: Callable[[], Any]) -> None:
        try:
            answer = pickle.dumps(report(), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            answer = _pickled(error)
        self._socket.sendall(HEADER.pack(len(answer)) + answer)


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
