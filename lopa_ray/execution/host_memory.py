"""Host memory: settings of the C library for memory that a step has freed."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""

KEPT_BYTES = 2**30
"""Maximum bytes of freed memory that the process keeps."""

MAPPED_BYTES = 2**25
"""Blocks of this many bytes or more are mapped separately and unmapped when freed. It is glibc's documented maximum."""


def keep_freed_memory() -> None:
    """By default glibc returns the memory of activations to the system after every step, which then has to map and
    clear all pages again. Without glibc nothing changes."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
