"""Landlock: which files a program may reach, where there is no namespace to hide the others."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from .kernel import PR_SET_NO_NEW_PRIVS, prctl, system_call
from .visible_paths import DEVICE_FILES, visible_paths

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

_READABLE = ("/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu")


def restrict_files(folder: str, prefixes: Sequence[str]) -> None:
    """From now on this process and its children read what is visible, and write in `folder` and shared memory only.

    From Linux 6.12 on they cannot signal processes that are not restricted in the same way either. Raises OSError where
    the kernel has no Landlock (5.13).
    """
    version = system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    read = _EXECUTE | _READ_FILE | _READ_DIR
    write = (
        _WRITE_FILE | _MAKE_AND_REMOVE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    )
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("=QQQ", read | write, 0, scoped)[: 24 if version >= 6 else 8]
    ruleset = system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    for path in (*visible_paths(prefixes), *_READABLE):
        _allow(ruleset, path, read)
    for path in (folder, "/dev/shm", *DEVICE_FILES):
        _allow(ruleset, path, read & ~_EXECUTE | write)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    system_call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    if not os.path.exists(path):
        return
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            access &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, opened))
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, bytes(rule.raw[:12]), 0)
    finally:
        os.close(opened)
