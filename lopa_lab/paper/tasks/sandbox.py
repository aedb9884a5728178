"""Programs of unknown origin, run apart from the rest of the machine. Linux only.

With namespaces (`Isolation.NAMESPACES`) a program has a file system of its own, in which it finds the interpreter with
its packages, the system's libraries and nothing else, all read-only, and an empty working folder in memory; it sees no
process but its own, has no network, and its user owns nothing outside of it if the caller is root.

Where the kernel refuses namespaces, as in most containers, Landlock keeps its files apart in the same way
(`Isolation.LANDLOCK`): it can read the same paths, and write in its working folder and in /dev/shm. It still sees sizes
and dates of files whose paths it knows, and Landlock does not keep it from changing modes of files of its user. With a
kernel before 6.12 it can signal other processes of its user, but not those over it. If the caller is root, the
program gets a user id that no other process has, and no file belongs to that user.

In both cases a seccomp filter refuses every socket, and calls that programs under test have no use for. Where the
kernel offers neither, nothing runs.

What is not kept out: a fault of the kernel itself; load on processors and memory within the limits, each of which holds
per process, so all processes together may take `processes` times as much; reading installed packages. A program that
looks for the token in its own process can pass without passing its tests; none comes to that by accident.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from lopa_lab.paper.tasks import isolation as supervisor_package
from lopa_lab.paper.tasks.isolation.request import Isolation, SandboxLimits, SandboxRequest
from lopa_ray.errors import LopaError, SettingsError

__all__ = ["Isolation", "Outcome", "SandboxLimits", "check_sandbox", "run_program"]

_START = "import sys; sys.path.append(sys.argv.pop(1)); from isolation.supervisor import main; main()"
_GRACE_SECONDS = 10.0
"""What the supervisor has for killing everything after the deadline."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    finished: bool
    """It ran to its last statement: it neither raised nor ended early, also not with exit code 0."""
    exit_code: int | None
    """Negative: the signal that ended it. None: it was killed at its deadline."""
    timed_out: bool
    """It came to its limit of wall time or CPU time."""
    stdout: str
    """The beginning; what is no UTF-8 is replaced."""
    stderr: str
    seconds: float
    """Wall time, the sandbox's own included."""


def run_program(
    source: str, *, stdin: str = "", limits: SandboxLimits | None = None, isolation: Isolation | None = None
) -> Outcome:
    """Runs a Python program under this interpreter, with its packages, as a module named `program`.

    Threads may call this at the same time. When it returns, no process and no file of the program is left. `isolation`:
    None takes the strongest that there is. Raises SettingsError where the machine cannot confine programs, and
    LopaError where it could before and cannot now.
    """
    return _run(source, stdin, limits or SandboxLimits(), isolation or check_sandbox())


@functools.cache
def check_sandbox() -> Isolation:
    """The strongest isolation on this machine, tried once. Raises SettingsError where there is none, saying why."""
    if sys.platform != "linux":
        raise SettingsError(f"executing generated code: got platform {sys.platform}; allowed: linux")
    reasons = []
    for isolation in Isolation:
        try:
            outcome = _run("", "", replace(SandboxLimits(), wall_seconds=60.0), isolation)
        except _RefusedError as error:
            reasons.append(f"{isolation}: {error}")
            continue
        if outcome.finished:
            return isolation
        reasons.append(f"{isolation}: {outcome.stderr.strip() or outcome}")
    raise SettingsError(
        "executing generated code: this machine has neither of the supported kinds of isolation: unprivileged user "
        f"namespaces (Linux 5.12), or Landlock with seccomp (Linux 5.13). Got {'; '.join(reasons)}"
    )


class _RefusedError(LopaError):
    """The sandbox could not be set up."""


def _run(source: str, stdin: str, limits: SandboxLimits, isolation: Isolation) -> Outcome:
    token = secrets.token_hex(16).encode()
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lopa-sandbox-"))
        program, given = (stack.enter_context(_file_of(text)) for text in (source, stdin))
        token_end, token_start = _pipe(stack)
        report_end, report_start = _pipe(stack)
        status_end, status_start = _pipe(stack)
        token_start.write(token)
        token_start.close()
        passed = [file.fileno() for file in (program, token_end, report_start, status_start)]
        request = SandboxRequest(
            isolation, limits, os.getpid(), folder, (sys.prefix, sys.base_prefix), *passed
        )
        package = Path(supervisor_package.__path__[0])
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, str(package.parent), request.dump()],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=passed,
            env={},
            cwd="/",
            start_new_session=True,
        )
        stack.enter_context(process)
        try:
            report_start.close()
            status_start.close()
            assert process.stdout is not None and process.stderr is not None
            most = dict.fromkeys((process.stdout, process.stderr), limits.output_bytes)
            most |= {report_end: 1024, status_end: 1 << 20}
            stdout, stderr, reported, status = _read(most, started + limits.wall_seconds + _GRACE_SECONDS)
        finally:
            _end(process)
    facts = _facts(status)
    if "error" in facts or not facts:
        raise _RefusedError(
            str(facts.get("error") or f"its supervisor died: {stderr.decode(errors='replace').strip()}")
        )
    code = facts.get("exit_code")
    return Outcome(
        finished=reported == token,
        exit_code=code,
        timed_out="timed_out" in facts or code == -signal.SIGXCPU,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        seconds=time.monotonic() - started,
    )


def _file_of(text: str) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    # Half of a surrogate pair is no text: such a program is refused by the interpreter, like other faulty ones.
    file.write(text.encode(errors="surrogatepass"))
    file.seek(0)
    return file


def _pipe(stack: contextlib.ExitStack) -> list[IO[bytes]]:
    """Both ends of a pipe: what is read, and what is written."""
    return [stack.enter_context(open(number, "r+b", buffering=0)) for number in os.pipe()]


def _read(limits: dict[IO[bytes], int], deadline: float) -> list[bytes]:
    """Read each pipe up to its limit in bytes, and drop the rest, until all are closed or the deadline passes."""
    texts = {file: bytearray() for file in limits}
    with selectors.DefaultSelector() as selector:
        for file in limits:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for key, _ in ready:
                source: Any = key.fileobj
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(source)
                texts[source] += data[: limits[source] - len(texts[source])]
    return [bytes(text) for text in texts.values()]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Also where the caller is interrupted: the supervisor kills its program on SIGTERM."""
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _facts(status: bytes) -> dict[str, Any]:
    """The supervisor's lines. The program has no access to their pipe."""
    facts: dict[str, Any] = {}
    for line in status.splitlines():
        facts |= json.loads(line)
    return facts
