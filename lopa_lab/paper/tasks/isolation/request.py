"""SandboxRequest: the caller's settings for the supervisor, as JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from .limits import SandboxLimits


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
    """The interpreter's folders."""
    source: int
    """The program's text."""
    token: int
    """A pipe from which the token can be read once the program has run to its end."""
    report: int
    """A pipe that takes the token."""
    status: int
    """A pipe for lines of JSON: `exit_code`, `timed_out`, `error`."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> SandboxRequest:
        values = json.loads(text)
        values["isolation"] = Isolation(values["isolation"])
        values["limits"] = SandboxLimits(**values["limits"])
        return SandboxRequest(**values)
