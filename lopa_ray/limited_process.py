"""LimitedProcess: a process that runs calls one after the other, each within limits of time and memory.

A pattern, a schema or a chat template of a user or a checkpoint may take any time and memory, in code that cannot be
interrupted. The process is a new interpreter and not a fork, because its parent has threads. It ends with its parent.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from lopa_ray.errors import LopaError, OverloadedError

MAX_BYTES = 2**30  # of memory, for a call
PATIENCE = 10  # a call ends after this many times its limit of processor time, however busy the machine is

_START = (
    "import json, sys; sys.path[:], preload = json.loads(sys.argv[1]); "
    f"from {__name__} import serve; serve(preload)"
)

# Signals at a limit: CPU timer, failed Rust allocation, stack overflow.
_EXCEEDED = (-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV)


class ProcessLimitError(Exception):
    """A call needs more time or memory than it may have, which the message says."""


class LimitedProcess:
    """Only one thread at a time may make a call."""

    def __init__(self, target: object, preload: str | None = None) -> None:
        """A call runs a method of `target`. It, arguments and results are pickled. `preload`: a module that the process
        imports before the first call."""
        # In a Ray worker, sys.path has folders that a new interpreter would not find.
        command = [sys.executable, "-P", "-c", _START, json.dumps([sys.path, preload])]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._unsent = pickle.dumps(target)
        self.close = weakref.finalize(self, _close, self._process, os.getpid())
        """End the process, and wait until it has."""

    def call(self, method: str, argument: object, limit_s: float) -> Any:
        """The result of a method of the target, within `limit_s` seconds of processor time.

        Raises the method's errors. If the process ends meanwhile, raises ProcessLimitError if the call went beyond a
        limit, and OverloadedError otherwise.
        """
        message = pickle.dumps((method, argument, limit_s))
        timer = threading.Timer(PATIENCE * limit_s, self.kill)
        try:
            if self._unsent:
                self._exchange(self._unsent)
                self._unsent = b""
            timer.start()  # the process has started, and imported what it needs
            result, error = self._exchange(message)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            self._raise_end(limit_s)
        except BaseException:  # such as Ctrl-C: the next call would read this one's answer
            self.close()
            raise
        finally:
            timer.cancel()
        if isinstance(error, MemoryError):
            raise _beyond(limit_s)
        if error is not None:
            raise error
        return result

    def _exchange(self, message: bytes) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(message)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def kill(self) -> None:
        """End the process at once, from any thread, also during a call, which then raises OverloadedError."""
        self._process.kill()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _raise_end(self, limit_s: float) -> NoReturn:
        status = self._process.wait()
        if status in _EXCEEDED:
            raise _beyond(limit_s)
        raise OverloadedError(
            f"a process that computes for this one has ended (status {status}): the machine may be short of memory, or "
            "of time; try again later"
        )


def _beyond(limit_s: float) -> ProcessLimitError:
    return ProcessLimitError(f"it needs more than {limit_s:g} s of processor time or {MAX_BYTES >> 30} GiB")


def _close(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() == parent:  # and not a fork
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # something was not read by the process
            pipe.close()  # type: ignore[union-attr]  # both are pipes


def serve(preload: str | None) -> None:
    """The process: read the target, then calls, and write their results or errors, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if preload is not None:
        import_module(preload)
    with suppress(EOFError):
        target, answer = pickle.load(calls), pickle.dumps(None)
        while True:
            answers.write(answer)
            answers.flush()
            answer = _answer(target, *pickle.load(calls))


def _answer(target: object, method: str, argument: object, limit_s: float) -> bytes:
    """(result, None) or (None, error), pickled."""
    _limit_memory()
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return pickle.dumps((getattr(target, method)(argument), None))
    except (LopaError, MemoryError) as error:
        return pickle.dumps((None, error))
    except BaseException as error:  # Rust's panics are not Exceptions, and others may not be picklable
        return pickle.dumps((None, RuntimeError(f"{method} failed: {type(error).__name__}: {error}")))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    """Let the process have MAX_BYTES more than it has."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
