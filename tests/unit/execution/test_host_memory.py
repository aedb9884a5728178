"""What a step has freed stays with the process."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lopa_ray.execution.device import DEVICES

pytestmark = pytest.mark.medium

BLOCK_BYTES = 30 * 2**20


def kept_bytes() -> int:
    """How much of a large block stays resident once it was written and freed."""
    before = resident_bytes()
    block = torch.ones(BLOCK_BYTES, dtype=torch.uint8)
    del block
    return resident_bytes() - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library without mallopt")
def test_a_process_that_decodes_on_cpu_keeps_freed_memory():
    """In a process of its own: a block as large as one that was freed before may stay without the setting."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert without < BLOCK_BYTES // 10 and kept > BLOCK_BYTES * 9 // 10


if __name__ == "__main__":
    torch.ones(1)
    without = kept_bytes()
    DEVICES["cpu"].torch_device()
    print(without, kept_bytes())
