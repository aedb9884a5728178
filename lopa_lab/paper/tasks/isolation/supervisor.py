"""The process over one program: it confines the program, waits for its end or its deadline, and leaves nothing behind.

Its one argument is a `SandboxRequest`. It says how the program ended through the pipe `status`. A process of its own,
since confining takes calls between fork and exec that are not safe in a process with threads.

With namespaces, the child of this process is the first process of its PID namespace, and the program is that one's
child: when the first process dies, the kernel kills all others, whatever they have done to get away. Without, this
process adopts what the program leaves behind (PR_SET_CHILD_SUBREAPER), and stops and kills all of its descendants.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, capabilities, prctl, set_capabilities
from .landlock import restrict_files
from .namespaces import INSIDE_UID, enter_namespaces, enter_private_root
from .request import Isolation, SandboxRequest
from .syscall_filter import install_filter

_FREE_UIDS = range(60578, 61184)
"""User ids that systemd's list leaves unused (https://systemd.io/UIDS-GIDS)."""

_RUNNER = Path(__file__).with_name("program_runner.py").read_text()
"""Read before the program's root takes it out of sight."""


def main() -> None:
    request = SandboxRequest.parse(sys.argv[1])
    deadline = time.monotonic() + request.limits.wall_seconds
    os.set_inheritable(request.status, False)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != request.caller:
        return
    # Waited for, not handled; both stay pending until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
    uid = _FREE_UIDS[os.getpid() % len(_FREE_UIDS)] if os.geteuid() == 0 else os.geteuid()
    try:
        if request.isolation == Isolation.NAMESPACES:
            enter_namespaces(uid)
        else:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = os.fork()
        if child == 0:
            _child(request, uid)
        _wait(request, child, deadline)
    except OSError as error:
        _say(request, error=str(error))


def _child(request: SandboxRequest, uid: int) -> NoReturn:
    """With namespaces their first process, otherwise the program's."""
    try:
        if request.isolation == Isolation.LANDLOCK:
            _become_program(request, request.folder, uid)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        folder = enter_private_root(request.limits.folder_bytes, request.visible_paths)
        program = os.fork()
        if program == 0:
            _become_program(request, folder, INSIDE_UID)
        while True:
            ended, status = os.wait()
            if ended == program:
                _say(request, exit_code=os.waitstatus_to_exitcode(status))
                break
    except BaseException as error:
        _say(request, error=f"{type(error).__name__}: {error}")
    os._exit(0)


def _become_program(request: SandboxRequest, folder: str, uid: int) -> NoReturn:
    """Turns this process into the program's."""
    try:
        supervisor = os.getppid()
        os.setsid()
        landlock = request.isolation == Isolation.LANDLOCK
        if os.geteuid() != uid:
            if landlock:
                os.chown(folder, uid, uid)
            become_user(uid, reaching=(sys.executable, folder))
        os.chdir(folder)
        over: tuple[int, ...] = ()
        if landlock:
            restrict_files(folder, request.visible_paths)
            # From Linux 6.12 on Landlock blocks signals to all processes outside. Before, the filter blocks signals
            # to the parents of the program.
            over = (supervisor, -supervisor, request.caller, -os.getpgid(request.caller), -1)
        _limit_resources(request, already_running=_count_threads(uid) if landlock else 0)
        install_filter(protected=over)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        passed = (request.source, request.token, request.report)
        for number in passed:
            os.set_inheritable(number, True)
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": folder,
            "TMPDIR": folder,
            # Each thread of a BLAS counts as a process, and reserves address space.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        os.execve(sys.executable, [sys.executable, "-I", "-c", _RUNNER, *map(str, passed)], environment)
    except BaseException as error:
        _say(request, error=f"{type(error).__name__}: {error}")
        os._exit(1)


def _limit_resources(request: SandboxRequest, already_running: int) -> None:
    limits = request.limits
    values = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes + already_running,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in values.items():
        resource.setrlimit(kind, (value, value))
    # SIGXCPU first, which may be ignored, then SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))


def _wait(request: SandboxRequest, child: int, deadline: float) -> None:
    """Wait until the child ends, the deadline passes or the caller is gone; report it when no process is left."""
    code = None
    while code is None:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
        elif not ended:
            left = deadline - time.monotonic()
            came = signal.sigtimedwait((signal.SIGCHLD, signal.SIGTERM), max(left, 0))
            if left <= 0 or (came and came.si_signo == signal.SIGTERM):
                break
    if request.isolation == Isolation.LANDLOCK:
        _kill_descendants()
    elif code is None:
        # When the first process of a PID namespace ends, the kernel kills all others in it.
        os.kill(child, signal.SIGKILL)
    _reap()
    if code is None:
        _say(request, timed_out=True)
    elif request.isolation == Isolation.LANDLOCK:
        _say(request, exit_code=code)


def _kill_descendants() -> None:
    """Kills all descendants.

    They are stopped first: a stopped process starts no other, and still counts against the limit on processes, so
    this comes to an end however fast they multiply.
    """
    stopped: set[int] = set()
    while unseen := _descendants() - stopped:
        for process in unseen:
            _signal(process, signal.SIGSTOP)
        stopped |= unseen
    for process in stopped:
        _signal(process, signal.SIGKILL)


def _reap() -> None:
    """Waits until no child is left."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants() -> set[int]:
    """Descendants of this process, without those that have ended."""
    parents: dict[int, int] = {}
    for stat in _read_processes("stat"):
        number, _, rest = stat.partition(" ")
        state, parent = rest.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            parents[int(number)] = int(parent)
    own = os.getpid()
    family = {own}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {own}


def _count_threads(uid: int) -> int:
    """Threads of a user: what the kernel counts against RLIMIT_NPROC outside of user namespaces."""
    count = 0
    for status in _read_processes("status"):
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if int(fields["Uid"].split()[0]) == uid:
            count += int(fields.get("Threads", "1"))
    return count


def _read_processes(file: str) -> list[str]:
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts.append((process / file).read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return texts


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return  # it has ended meanwhile


def _say(request: SandboxRequest, **facts: object) -> None:
    try:
        os.write(request.status, json.dumps(facts).encode() + b"\n")
    except BrokenPipeError:
        return  # the caller is gone


_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2


def become_user(uid: int, reaching: Sequence[str]) -> None:
    """Takes user and group `uid`, for good, without root's capabilities.

    Where one of the paths `reaching` is in a folder that only root may enter (as interpreters of pyenv, uv and conda in
    root's home), one capability stays: that of reading past modes of files. What then keeps files apart is Landlock
    alone. Containers often lack that capability; they have the wider one of reading and writing.
    """
    before = capabilities()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    set_capabilities(0, permitted=before)
    kept = 0
    if not all(os.access(path, os.X_OK, effective_ids=True) for path in reaching):
        kept = _CAP_DAC_READ_SEARCH if before >> _CAP_DAC_READ_SEARCH & 1 else _CAP_DAC_OVERRIDE
    set_capabilities(1 << kept if kept else 0)
    if kept:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, kept)
