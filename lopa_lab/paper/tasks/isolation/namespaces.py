"""Namespaces of a program: its own users, processes, mounts and (absent) network."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import kernel
from .request import DEVICES

INSIDE_UID = 1000
"""The program's user and group as it sees them."""

_OLD_ROOT = "/old-root"


def enter_namespaces(outside_uid: int) -> None:
    """Moves this process into new namespaces; its next child is the first process of the new ones.

    `outside_uid` is the user that the program is to the rest of the machine: this process's own, or any where that is
    root. Raises OSError where the kernel refuses.
    """
    if os.geteuid() != 0:
        outside_gid = os.getegid()
        kernel.unshare(kernel.ALL_NAMESPACES)
        _write("/proc/self/setgroups", "deny")
        _write_maps("self", f"{INSIDE_UID} {outside_uid} 1", f"{INSIDE_UID} {outside_gid} 1")
        return
    # Only a process outside of the namespace may map two users. Root is one of them, because it may be the only user
    # that can read the interpreter's folder.
    supervisor = os.getpid()
    ready, unshared = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(unshared)
        code = 1
        try:
            if os.read(ready, 1):
                both = f"0 0 1\n{INSIDE_UID} {outside_uid} 1"
                _write_maps(str(supervisor), both, both)
                code = 0
        finally:
            os._exit(code)
    os.close(ready)
    try:
        kernel.unshare(kernel.ALL_NAMESPACES)
        os.write(unshared, b"1")
    finally:
        os.close(unshared)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError("the users of a new namespace cannot be set")


def enter_private_root(folder_bytes: int, visible: Sequence[str]) -> str:
    """Makes a file system of the paths `visible`, read-only, and an empty working folder in memory; gives that folder.

    To be called by the first process of the new namespaces.
    """
    visible = [*visible, *(device for device in DEVICES if os.path.exists(device))]
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _mount_new("tmpfs", "/tmp", "size=1m,mode=755")
    os.mkdir("/tmp" + _OLD_ROOT)
    # From here on the files below the old /tmp are visible again, because the new mount no longer covers them.
    kernel.pivot_root("/tmp", "/tmp" + _OLD_ROOT)
    os.chdir("/")
    for path in visible:
        _show(path)
    # An environment below /tmp must not be covered.
    folder = "/sandbox" if any(path.startswith("/tmp/") for path in visible) else "/tmp"
    for path in (folder, "/dev/shm", "/proc"):
        os.makedirs(path, exist_ok=True)
    os.symlink("/proc/self/fd", "/dev/fd")
    _mount_new("proc", "/proc")
    kernel.unmount(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)
    kernel.make_read_only("/")
    for path in (folder, "/dev/shm"):
        _mount_new("tmpfs", path, f"size={folder_bytes},nr_inodes=10k,mode=1777")
    return folder


def _mount_new(kind: str, path: str, data: str = "") -> None:
    kernel.mount(kind, path, kind, kernel.MS_NOSUID | kernel.MS_NODEV, data)


def _show(path: str) -> None:
    """Puts a path of the old root at the same place of the new one."""
    old = _OLD_ROOT + path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), path)
        return
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    kernel.mount(old, path, flags=kernel.MS_BIND | kernel.MS_REC)


def _write_maps(process: str, users: str, groups: str) -> None:
    _write(f"/proc/{process}/uid_map", users)
    _write(f"/proc/{process}/gid_map", groups)


def _write(path: str, text: str) -> None:
    # One write call: the kernel takes a map whole.
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, text.encode())
    finally:
        os.close(opened)
