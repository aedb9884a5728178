"""SandboxRequest: the caller's settings for the supervisor, as JSON on its command line."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum

_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
)

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""What a program may use beside what it may read."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one program and the processes that it starts. All are above zero."""

    wall_seconds: float = 10.0
    """From the start of the sandbox to the end of the program."""
    cpu_seconds: int = 10
    """For each process."""
    memory_bytes: int = 4 << 30
    """Address space of each process."""
    processes: int = 32
    """Processes and threads at a time."""
    file_bytes: int = 16 << 20
    """Length of each file."""
    folder_bytes: int = 64 << 20
    """Everything in the working folder; holds with namespaces only."""
    open_files: int = 128
    """For each process."""
    output_bytes: int = 64 << 10
    """What is kept of stdout and of stderr; more is read and dropped."""


class Isolation(StrEnum):
    """The means that isolate a program from the rest of the machine."""

    NAMESPACES = "namespaces"
    """Linux namespaces: processes, mounts, network, users of its own."""
    LANDLOCK = "landlock"
    """Landlock and a seccomp filter, where namespaces are refused, as in most containers."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """Numbers are those of open files."""

    isolation: Isolation
    limits: SandboxLimits
    caller: int
    """Process id."""
    folder: str
    """The working folder; unused with namespaces, which make one."""
    prefixes: tuple[str, ...]
    """The interpreter's folders (`sys.prefix`, `sys.base_prefix`)."""
    source: int
    """The program's text."""
    token: int
    """A pipe from which the token can be read once the program has run to its end."""
    report: int
    """A pipe that takes the token."""
    status: int
    """A pipe for lines of JSON: `exit_code`, `timed_out`, `error`."""

    @property
    def visible_paths(self) -> list[str]:
        """What a program may read: the interpreter, its packages, and the system's libraries.

        Files and folders that exist, none inside of another one; they may be symbolic links.
        """
        paths: list[str] = []
        for path in sorted({*_READABLE, *self.prefixes, *map(os.path.realpath, self.prefixes)}):
            if os.path.lexists(path) and not any(
                path == above or path.startswith(above + "/") for above in paths
            ):
                paths.append(path)
        return paths

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> SandboxRequest:
        values = json.loads(text)
        values["isolation"] = Isolation(values["isolation"])
        values["limits"] = SandboxLimits(**values["limits"])
        return SandboxRequest(**values)
