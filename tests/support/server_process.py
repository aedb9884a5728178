"""`lopa serve` as a user starts it: a process with a Ray of its own, reached over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import yaml

START_S = 180.0
"""Starting takes about 20 seconds on two free cores."""

STOP_S = 60.0

Models = Sequence[Mapping[str, Any]]


@dataclass
class Served:
    """A running server, and the folder with what it prints."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    key: str = "none"
    """The API key that its clients send."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        """A client of this server."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, timeout=120, headers=headers, **options)

    def openai(self, **options: Any) -> openai.OpenAI:
        """OpenAI's own."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, **options)

    @property
    def printed(self) -> str:
        """All that it has printed."""
        return (self.folder / "stdout").read_text() + (self.folder / "stderr").read_text()

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Its own process and all of its Ray's whose command line begins with `title`."""
        return [process for process in session_of(self.process.pid) if command(process).startswith(title)]

    @property
    def ray_folder(self) -> Path:
        """Where its Ray keeps logs and ports."""
        options = [word for process in self.processes() for word in process.cmdline()]
        (logs,) = {word.partition("=")[2] for word in options if word.startswith("--log_dir=")}
        return Path(logs).parent

    def interrupt(self) -> None:
        """As Ctrl-C does in a terminal, where all its processes get the signal; then `check_stopped`."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.check_stopped()

    def check_stopped(self) -> None:
        """Fails unless it ends with status 0, says nothing but that, and leaves no process behind."""
        assert self.process.wait(STOP_S) == 0, self.printed
        *_, last = self.printed.splitlines()
        assert last.startswith("Finishing what is in flight"), self.printed
        wait_until(lambda: not session_of(self.process.pid), 20, "its processes to go")

    def kill(self) -> None:
        """End whatever still runs."""
        for process in session_of(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(STOP_S)


@contextlib.contextmanager
def serving(
    folder: Path,
    models: Models,
    *,
    deployments: Models = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """A server that is ready. It is for the caller to stop; what is left at the end is killed."""
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump(serve_config(models, deployments)))
    server = start(folder, "--config", str(config), *options, environment=environment)
    try:
        wait_until(lambda: is_ready(server), START_S, "the server to start")
        yield server
    finally:
        server.kill()


def start(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Served:
    """Run `lopa serve` on a free port, without waiting for it."""
    port = free_port()
    command = [sys.executable, "-m", "cluster.cli", "serve", "--port", str(port), *options]
    own = {"RAY_ADDRESS", "LOPA_API_KEYS"}
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    # Metrics are to be seen without waiting for long.
    fast = {"RAY_metrics_report_interval_ms": "1000"}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        # A session of its own is how its processes are found, wherever Ray hangs them.
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**inherited, **fast, **(environment or {})},
        )
    return Served(process, f"http://127.0.0.1:{port}", folder)


def serve_config(models: Models, deployments: Models = ()) -> dict[str, Any]:
    """A Serve config."""
    application = {
        "name": "lopa",
        "route_prefix": "/",
        "import_path": "cluster.app:build",
        "args": {"models": [dict(model) for model in models]},
        "deployments": [dict(deployment) for deployment in deployments],
    }
    return {"proxy_location": "HeadOnly", "applications": [application]}


def is_ready(server: Served) -> bool:
    assert server.process.poll() is None, server.printed
    return "Serving " in (server.folder / "stdout").read_text()


def session_of(pid: int) -> list[psutil.Process]:
    """Processes that live in the session which the process `pid` leads, or led."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Seconds that it took; fails if it takes longer than `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.05)
    return time.monotonic() - began


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
