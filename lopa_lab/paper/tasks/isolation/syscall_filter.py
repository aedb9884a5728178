"""A seccomp filter: system calls that no program in the sandbox may make."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from .kernel import CLONE_NEWUSER, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, prctl

_SECCOMP_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000
_CLONE3 = 435

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED = {
    # Sockets of every kind, and io_uring, which opens sockets past this filter. socketpair stays.
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    # Other namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    # Other processes' memory and files.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "open_by_handle_at": (304, 265),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    # Kernel interfaces that tests of programs have no use for.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
"""Numbers on x86_64 and on aarch64."""

_SIGNALLING = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_CLONE = (56, 220)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install_filter(protected: Sequence[int] = ()) -> None:
    """For this process and all that it starts, for good. Sets PR_SET_NO_NEW_PRIVS.

    No process can be signalled by a first argument among `protected` (process ids, -1, negative groups). Raises
    OSError where the kernel has no seccomp, or on another architecture than x86_64 and aarch64.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(
            errno.ENOSYS, f"seccomp filter: got architecture {machine}; allowed: {', '.join(_ARCHITECTURES)}"
        )
    code = b"".join(_instructions(machine, protected))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _Program(len(code) // 8, code))


def _instructions(machine: str, protected: Sequence[int]) -> list[bytes]:
    column = list(_ARCHITECTURES).index(machine)
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        # A 32-bit call has other numbers.
        _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        refuse,
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_instruction(_AT_LEAST, _X32, 0, 1), refuse]
    for numbers in _DENIED.values():
        code += [_instruction(_EQUAL, numbers[column], 0, 1), refuse]
    # A filter cannot read the flags of clone3, which are behind a pointer. The C library then calls clone.
    code += [_instruction(_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    code += [
        _instruction(_EQUAL, _CLONE[column], 0, 4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, CLONE_NEWUSER, 0, 1),
        refuse,
        _instruction(_RETURN, _ALLOW),
    ]
    for numbers in _SIGNALLING.values() if protected else ():
        code += [
            _instruction(_EQUAL, numbers[column], 0, 2 + 2 * len(protected)),
            _instruction(_LOAD, _FIRST_ARGUMENT),
        ]
        for target in protected:
            code += [_instruction(_EQUAL, target & 0xFFFFFFFF, 0, 1), refuse]
        code.append(_instruction(_RETURN, _ALLOW))
    return [*code, _instruction(_RETURN, _ALLOW)]


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter; jumps count instructions."""
    return struct.pack("=HBBI", operation, if_true, if_false, value)
