"""Signals that end a command. What it has started ends with it, since each of them leaves every `with` block."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | signal.Handlers
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)  # ctrl-C, SIGINT, is Python's


def exit_on_signals() -> None:
    """Have SIGTERM and SIGHUP raise SystemExit in the main thread, with a shell's status, unless they are ignored."""
    for number in TERMINATIONS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    for repeated in TERMINATIONS:  # terminals and supervisors send several, which must not cut the end short
        signal.signal(repeated, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def ignored_signals() -> Iterator[None]:
    """A further signal must not cut short what the first signal asked for."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set; SIGHUP only if nohup has not ignored it."""
    stop = threading.Event()
    with _handled_by(lambda *_: stop.set()):
        yield stop


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    numbers = [number for number in TERMINATIONS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, *numbers)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
