"""The sandbox of the paper's evaluation: what programs cannot do, and what counts as finished."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from lopa_lab.paper.tasks import sandbox
from lopa_lab.paper.tasks.sandbox import Isolation, Outcome, SandboxLimits, check_sandbox, run_program
from lopa_ray.errors import SettingsError
from support.isolations import ISOLATIONS, require_isolation
from support.paths import ROOT
from support.waiting import wait_until


@pytest.fixture(params=ISOLATIONS, autouse=True)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    """Each way to confine programs, as if it were what the machine offers."""
    isolation: Isolation = request.param
    require_isolation(isolation)
    monkeypatch.setattr(sandbox, "check_sandbox", lambda: isolation)
    return isolation


def run(source: str, **limits: float) -> Outcome:
    return run_program(source, limits=SandboxLimits(**{"wall_seconds": 5.0, **limits}))  # type: ignore[arg-type]


class TestFinished:
    def test_ran_to_its_last_statement(self) -> None:
        outcome = run("import sys\nprint('out')\nprint('error', file=sys.stderr)")
        assert outcome.finished and outcome.exit_code == 0 and not outcome.timed_out
        assert (outcome.stdout, outcome.stderr) == ("out\n", "error\n")

    @pytest.mark.parametrize(
        ("source", "code"),
        [
            ("import sys; sys.exit(0)", 0),
            ("import os; os._exit(0)", 0),
            ("exit()", 0),
            ("assert 1 == 2", 1),
            ("def f(:", 1),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
            ("print('x' * 3); raise SystemExit", 0),
        ],
    )
    def test_other_ends_are_no_success(self, source: str, code: int) -> None:
        outcome = run(source)
        assert not outcome.finished and outcome.exit_code == code

    def test_guarded_main_does_not_run(self) -> None:
        assert run("if __name__ == '__main__':\n    raise SystemExit(1)").finished

    def test_stdin(self) -> None:
        assert run_program("assert input() == 'a line'", stdin="a line\n").finished
        assert "EOFError" in run("input()").stderr

    def test_dataclasses_find_their_module(self) -> None:
        imports = "from __future__ import annotations\nfrom dataclasses import dataclass"
        source = f"{imports}\n@dataclass\nclass A:\n    x: int\nA(1)"
        assert run(source).finished

    def test_threads_that_still_run_end_with_the_program(self) -> None:
        outcome = run("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()")
        assert outcome.finished and outcome.seconds < 5

    def test_multiprocessing(self) -> None:
        source = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p:\n    "
        assert run(source + "assert p.map(abs, [-1]) == [1]").finished


class TestLimits:
    @pytest.mark.parametrize("source", ["while True: pass", "import time; time.sleep(60)"])
    def test_wall_time(self, source: str) -> None:
        outcome = run(source, wall_seconds=1.0)
        assert outcome.timed_out and not outcome.finished and outcome.exit_code is None
        assert 1 <= outcome.seconds < 5

    def test_cpu_time(self) -> None:
        outcome = run("while True: pass", wall_seconds=20.0, cpu_seconds=1)
        assert outcome.timed_out and not outcome.finished

    def test_signals_ignored(self) -> None:
        ignore = "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        assert run(ignore + "while True: pass", wall_seconds=1.0).timed_out

    def test_memory(self) -> None:
        outcome = run("x = bytearray(2 << 30)", memory_bytes=1 << 30)
        assert not outcome.finished and "MemoryError" in outcome.stderr

    def test_fork_bomb(self) -> None:
        # Each child forks on, ignoring what it is refused.
        bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
        name, bomb = named(bomb)
        started = time.monotonic()
        most = 0
        with ThreadPoolExecutor(1) as pool:
            bombing = pool.submit(run, bomb, wall_seconds=1.5)
            while not bombing.done():
                most = max(most, len(processes(name)))
                time.sleep(0.1)
        assert bombing.result().timed_out
        assert 4 < most <= 40
        assert time.monotonic() - started < 15
        assert not processes(name)

    def test_threads(self) -> None:
        outcome = run(
            "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(1,)).start()"
        )
        assert not outcome.finished and "can't start new thread" in outcome.stderr

    def test_huge_output(self) -> None:
        outcome = run("for _ in range(300): print('x' * 100_000)", output_bytes=1000)
        assert outcome.finished and outcome.stdout == "x" * 1000

    def test_length_of_files(self) -> None:
        outcome = run(
            "f = open('big', 'wb', buffering=0)\nfor _ in range(3): f.write(b'x' * 1000)", file_bytes=1000
        )
        assert not outcome.finished and "File too large" in outcome.stderr

    def test_open_files(self) -> None:
        outcome = run("files = [open('/dev/null') for _ in range(100)]", open_files=20)
        assert not outcome.finished and "Too many open files" in outcome.stderr


class TestApart:
    def test_a_child_in_a_session_of_its_own_dies_too(self) -> None:
        source = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in set(signal.Signals) - {9, 19}:
            signal.signal(number, signal.SIG_IGN)
        for number in (0, 1, 2):
            os.close(number)
        time.sleep(60)
    os._exit(0)
os.wait()
"""
        name, source = named(source)
        outcome = run(source)
        assert outcome.finished and outcome.seconds < 5
        assert not processes(name)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_programs_end_with_their_caller(
        self, isolation: Isolation, number: signal.Signals, tmp_path: Path
    ) -> None:
        name, program = named("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)")
        call = (
            f"run_program({program!r}, limits=SandboxLimits(60.0), isolation=Isolation({str(isolation)!r}))"
        )
        command = [sys.executable, "-c", f"from lopa_lab.paper.tasks.sandbox import *; {call}"]
        caller = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env={"TMPDIR": str(tmp_path)})
        wait_until(lambda: len(processes(name)) == 2, 30, "the program and its child")
        caller.send_signal(number)
        caller.wait(20)
        wait_until(lambda: not processes(name), 10, "their end")

    def test_no_network(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            port = server.getsockname()[1]
            outcome = run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
            assert not outcome.finished and "PermissionError" in outcome.stderr
            with pytest.raises(TimeoutError):
                server.accept()
        assert not run(
            "import socket; socket.getaddrinfo('localhost', 80)\nsocket.socket(socket.AF_UNIX)"
        ).finished
        assert not run("import urllib.request as u; u.urlopen('http://example.org', timeout=2)").finished

    def test_an_empty_folder_that_is_gone_afterwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        source = "import os\nassert os.listdir('.') == []\nos.mkdir('a')\nopen('a/b', 'w').write('c')\nos.chmod('a', 0)"
        assert run(source).finished
        assert not list(tmp_path.iterdir())

    def test_other_folders_cannot_be_written(self, tmp_path: Path) -> None:
        for folder in (
            str(tmp_path),
            "/var/tmp",
            "/usr",
            os.path.dirname(os.__file__),
            "/",
        ):
            outcome = run(f"open({folder!r} + '/written', 'w')")
            assert not outcome.finished, folder
            assert re.search("PermissionError|Read-only|FileNotFound", outcome.stderr)

    def test_the_users_files_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        for path in (
            tmp_path / "secret",
            Path(__file__),
            Path("/etc/passwd"),
            Path(f"/proc/{os.getpid()}/environ"),
        ):
            outcome = run(f"print(open({str(path)!r}).read())")
            assert not outcome.finished and not outcome.stdout, path

    def test_the_environment_is_not_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        outcome = run("import os; print(dict(os.environ)); print(open('/proc/self/environ').read())")
        loop = "import glob\nfor path in glob.glob('/proc/*/environ'):\n"
        outcome_of_all = run(f"{loop}  try: print(open(path).read())\n  except OSError: pass")
        assert "hf_secret" not in outcome.stdout + outcome_of_all.stdout
        assert "PATH" in outcome.stdout

    def test_processes_over_it_cannot_be_killed(self) -> None:
        victims = f"(os.getppid(), {os.getpid()}, {os.getppid()}, -1, -{os.getpgid(0)})"
        source = f"import os\nfor v in {victims}:\n  try: os.kill(v, 9)\n  except OSError as e: print(e)"
        outcome = run(source)
        # With namespaces -1 is every process of the program's own, and none else.
        assert outcome.finished or outcome.exit_code == -9
        assert run("import os, time; os.kill(os.getppid(), 9)\ntime.sleep(0.1)").timed_out is False

    def test_no_namespaces_of_its_own(self) -> None:
        source = "import ctypes\nassert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == -1"
        assert run(source).finished

    def test_no_capabilities(self) -> None:
        source = """
import ctypes, struct
sets = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capget(struct.pack("Ii", 0x20080522, 0), sets) == 0
print(*sets)
"""
        outcome = run(source)
        effective, permitted, _, *high = map(int, outcome.stdout.split())
        # Bits 1 and 2 are for reading an interpreter in root's home where Landlock keeps the files apart.
        assert not (effective | permitted) & ~0b110 and not any(high), outcome


def test_programs_at_the_same_time() -> None:
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda n: run(f"print({n})\nassert {n} % 2"), range(8)))
    assert [outcome.finished for outcome in outcomes] == [False, True] * 4
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(8)]


def test_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SettingsError, match="got platform darwin; allowed: linux"):
        check_sandbox.__wrapped__()


def test_refused_where_the_kernel_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, stdin: str, limits: SandboxLimits, isolation: Isolation) -> Outcome:
        raise sandbox._RefusedError("unshare: Operation not permitted")

    monkeypatch.setattr(sandbox, "_run", refuse)
    with pytest.raises(
        SettingsError, match=r"neither of the supported kinds.*namespaces: unshare.*landlock: unshare"
    ):
        check_sandbox.__wrapped__()


def named(source: str) -> tuple[str, str]:
    """A name, and the program as one whose processes all have it, so that they can be told from others."""
    name = secrets.token_hex(4)
    return name, f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}')\n{source}"


def processes(name: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == name]
