"""`end_with_parent`: have a process that a benchmark starts end with the benchmark, also if that is killed."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1

_LIBC = ctypes.CDLL(None)  # between fork and exec nothing can be loaded


def end_with_parent() -> None:
    """A `preexec_fn`: on Linux the process gets SIGTERM when the thread that started it ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
