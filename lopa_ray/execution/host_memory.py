"""Host memory: what the C library does with memory that a step has freed."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""

KEPT_BYTES = 2**30
"""Freed memory that the process keeps, at most."""

MAPPED_BYTES = 2**25
"""Blocks from this size on are mapped on their own, and unmapped when freed; the largest size that glibc documents."""


def keep_freed_memory() -> None:
    """Have this process keep freed memory for the next step; without glibc nothing changes.

    Otherwise it gives the memory of activations back in every step, and the next one has the system map and clear
    all of its pages again.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
