"""A terminal for commands of tests: a stream that says it is one, and a process in a real one."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Sequence
from fcntl import ioctl

import pytest

CONTROL = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal(io.StringIO):
    """What a command writes to it as to a terminal."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """All that was written, in order, without colours and movements of the cursor."""
        return CONTROL.sub("", self.getvalue())


def stderr_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Terminal:
    """In the place of this process's stderr."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def run_in_terminal(command: Sequence[str], columns: int, typed: Sequence[tuple[str, str]] = ()) -> str:
    """What a process shows in a terminal of that width, without colours and movements of the cursor. It must exit 0.

    `typed`: pairs of what to wait for in what it shows, from the previous pair on, and what is typed then.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        os.environ.pop("COLUMNS", None)
        os.execv(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    shown, waiting, seen = b"", list(typed), 0
    while part := _read(terminal):
        shown += part
        while waiting and (at := shown.find(waiting[0][0].encode(), seen)) >= 0:
            awaited, keys = waiting.pop(0)
            seen = at + len(awaited.encode())
            os.write(terminal, keys.encode())
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    text = CONTROL.sub("", shown.decode())
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux's end of a terminal whose process has exited
        return b""
