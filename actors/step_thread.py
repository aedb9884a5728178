"""StepThread: a worker's end of the connection on which a group's plans come, and its reports go.

Everything else that a worker is asked for is a call of its actor. A step is not: such a call passes six threads and
two event loops, which is milliseconds beside a forward that may take four, and a socket a few tenths of one.
"""

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
from typing import Any

from lopa_ray.errors import TransferError

HEADER = struct.Struct("!Q")
"""Before each message: how many bytes it has. A message is a pickled plan, report or exception."""

TOKEN_BYTES = 32

READY = b"\x01"
"""What the master answers to a token that it has given out."""


@dataclass(frozen=True, slots=True)
class StepAddress:
    """The address of a worker's master, and the token that the worker sends first. Ray transports both to the worker.
    The master unpickles nothing from a connection without the token.
    """

    host: str
    port: int
    token: bytes = field(repr=False)


class StepThread:
    """Executes the plans that come, one after the other, until the connection ends."""

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
        # The new thread gets the context variables of this one, including torch's.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._serve,), name="steps", daemon=True).start()

    def _serve(self) -> None:
        # A broken connection means that this actor ends: Ray ends it if the master is dead, else the master does.
        with self._socket, self._socket.makefile("rb") as messages, suppress(OSError):
            while len(header := messages.read(HEADER.size)) == HEADER.size:
                answer = self._answer(messages.read(*HEADER.unpack(header)))
                self._socket.sendall(HEADER.pack(len(answer)) + answer)

    def _answer(self, message: bytes) -> bytes:
        try:
            return pickle.dumps(self._execute(pickle.loads(message)), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return _pickled(error)


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
