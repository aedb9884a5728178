"""SandboxLimits: what one program may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one program and the processes that it starts. All are above zero."""

    wall_seconds: float = 10.0
    """From the start of the sandbox to the end of the program."""
    cpu_seconds: int = 10
    """CPU time of each process."""
    memory_bytes: int = 4 << 30
    """Address space of each process."""
    processes: int = 32
    """Processes and threads at a time."""
    file_bytes: int = 16 << 20
    """Length of each file."""
    folder_bytes: int = 64 << 20
    """Everything in the working folder; holds with namespaces only."""
    open_files: int = 128
    """Open files of each process."""
    output_bytes: int = 64 << 10
    """What is kept of stdout and of stderr; more is read and dropped."""
