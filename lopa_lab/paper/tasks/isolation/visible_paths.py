"""What a program may read: the interpreter, its packages, and the system's libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
)

DEVICE_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def visible_paths(prefixes: Sequence[str]) -> list[str]:
    """Files and folders that exist, none inside of another one; they may be symbolic links.

    `prefixes` are the interpreter's folders (`sys.prefix`, `sys.base_prefix`).
    """
    paths: list[str] = []
    for path in sorted({*_SYSTEM, *prefixes, *map(os.path.realpath, prefixes)}):
        if os.path.lexists(path) and not any(
            path == above or path.startswith(above + "/") for above in paths
        ):
            paths.append(path)
    return paths
