"""What a compiled kernel takes of a streaming multiprocessor, read from its binary."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

SM_REGISTERS, SM_SHARED_BYTES, SM_WARPS, SM_BLOCKS = 65_536, 233_472, 64, 32
"""Of a multiprocessor of sm_90 and of sm_100."""

REGISTER_UNIT, RESERVED_SHARED_BYTES, WARP_SIZE = 8, 1024, 32
"""Registers of a thread are allocated in units; the driver takes shared memory of each block."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel."""

    registers: int
    """Per thread."""
    stack_bytes: int
    """Per thread, with registers that are spilled to memory."""
    local_bytes: int
    shared_bytes: int
    """Per block."""
    warps: int
    """Per block."""

    @classmethod
    def of(cls, kernel: Any) -> Resources:
        """Those of a kernel that Triton has compiled."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
            printed = subprocess.run(
                [os.fspath(tool), "--dump-resource-usage", file.name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        usage = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", printed)}
        metadata = kernel.metadata
        return cls(usage["REG"], usage["STACK"], usage["LOCAL"], metadata.shared, metadata.num_warps)

    @property
    def blocks_per_sm(self) -> int:
        """How many blocks a multiprocessor runs together."""
        registers = -(-self.registers // REGISTER_UNIT) * REGISTER_UNIT * WARP_SIZE * self.warps
        return min(
            SM_REGISTERS // registers,
            SM_SHARED_BYTES // (self.shared_bytes + RESERVED_SHARED_BYTES),
            SM_WARPS // self.warps,
            SM_BLOCKS,
        )
