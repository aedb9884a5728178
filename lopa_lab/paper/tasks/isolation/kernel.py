"""System calls that Python 3.11 has no functions for. Each raises OSError naming the call."""

from __future__ import annotations

import ctypes
import os
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
ALL_NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 0x2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38

_MOUNT_SETATTR = 442  # system calls from 424 on have one number on all architectures
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 0x1, 0x2


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))

    def __init__(self) -> None:
        super().__init__(0x20080522, 0)


_Capabilities = ctypes.c_uint32 * 6
"""Effective, permitted, inheritable of bits 0 to 31, then of bits 32 to 63."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def _c_value(argument: int | ctypes.Structure | bytes | None) -> Any:
    """An argument of a system call; a structure goes as its address."""
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def system_call(number: int, *arguments: int | ctypes.Structure | bytes | None) -> int:
    """A system call by its number."""
    values = map(_c_value, arguments)
    return _checked(_libc().syscall(ctypes.c_long(number), *values), f"system call {number}")


def prctl(option: int, argument: int, second: int | ctypes.Structure = 0) -> None:
    values = map(_c_value, (argument, second, 0, 0))
    _checked(_libc().prctl(option, *values), f"prctl {option}")


def capabilities() -> int:
    """The permitted capabilities of this process, as bits."""
    sets = _Capabilities()
    _checked(_libc().capget(ctypes.byref(_CapabilityHeader()), sets), "capget")
    return int(sets[1] | sets[4] << 32)


def set_capabilities(effective: int, permitted: int | None = None) -> None:
    """Sets this process's capabilities; what is permitted can also be inherited. None: as effective."""
    permitted = effective if permitted is None else permitted
    values = [
        number >> shift & 0xFFFFFFFF for shift in (0, 32) for number in (effective, permitted, permitted)
    ]
    _checked(_libc().capset(ctypes.byref(_CapabilityHeader()), _Capabilities(*values)), "capset")


def unshare(flags: int) -> None:
    _checked(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = [text.encode() or None for text in (source, target, kind)]
    result = _libc().mount(*arguments, ctypes.c_ulong(flags), data.encode() or None)
    _checked(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Takes the mount away for new uses at once."""
    _checked(_libc().umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _checked(_libc().pivot_root(new.encode(), old.encode()), "pivot_root")


def make_read_only(path: str) -> None:
    """The mount at `path` and all below it (Linux 5.12)."""
    attributes = _MountAttributes(set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    system_call(
        _MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, ctypes.sizeof(attributes)
    )
