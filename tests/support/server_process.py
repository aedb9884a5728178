"""`lopa serve` as a user starts it: a process with a Ray of its own, reached over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import yaml

from lopa_ray.config.yaml_files import serve_config
from support.paths import BIN
from support.ports import free_port
from support.processes import command_line, processes_in_session
from support.waiting import ENDING_TIMEOUT_S, wait_until

START_TIMEOUT_S = 180.0
"""Starting takes about 20 seconds on two free cores."""

STOP_TIMEOUT_S = 60.0

Entries = Sequence[Mapping[str, Any]]
"""Entries of a list in a Serve config: models, or deployments."""


@dataclass
class ServerProcess:
    """A running server, and the folder with what it prints."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    api_key: str = "none"
    """The API key that clients of this server send."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        """A client of this server."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.url, timeout=120, headers=headers, **options)

    def openai(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client of this server."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, **options)

    @property
    def output(self) -> str:
        """What it has printed to stdout and stderr."""
        return (self.folder / "stdout").read_text() + (self.folder / "stderr").read_text()

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Its own process and all of its Ray's whose command line begins with `title`."""
        return [
            process
            for process in processes_in_session(self.process.pid)
            if command_line(process).startswith(title)
        ]

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
        assert self.process.wait(STOP_TIMEOUT_S) == 0, self.output
        # Ray tells every client of a node of workers that other tests have killed there.
        *_, last = (line for line in self.output.splitlines() if "(raylet)" not in line)
        assert last.startswith("Finishing the requests in flight"), self.output
        wait_until(
            lambda: not processes_in_session(self.process.pid), "its processes to go", ENDING_TIMEOUT_S
        )

    def kill(self) -> None:
        """Kill all processes of the server."""
        for process in processes_in_session(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def run_server(
    folder: Path,
    models: Entries,
    *,
    deployments: Entries = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """A server that is ready. It is for the caller to stop; what is left at the end is killed."""
    application = {
        "name": "lopa",
        "route_prefix": "/",
        "import_path": "cluster.serving.app:build",
        "args": {"models": [dict(model) for model in models]},
        "deployments": [dict(deployment) for deployment in deployments],
    }
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump({"proxy_location": "HeadOnly", "applications": [application]}))
    server = start_server(folder, "--config", str(config), *options, environment=environment)

    def is_ready() -> bool:
        assert server.process.poll() is None, server.output
        return "Serving " in (folder / "stdout").read_text()

    try:
        wait_until(is_ready, "the server to start", START_TIMEOUT_S)
        yield server
    finally:
        server.kill()


def answers(url: str) -> bool:
    """Whether a server there is well."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def shipped_config(folder: Path, port: int) -> Path:
    """The Serve config that ships, but for its port and what Ray counts as a worker's CPUs."""
    values = yaml.safe_load(serve_config().read_text())
    values["http_options"]["port"] = port
    values["applications"][0]["args"]["models"][0]["group"] = {"num_cpus": 0.25}
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@contextlib.contextmanager
def lopa_serve(out: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The URL of `lopa serve` on the cluster that the environment names. It has to end when it is told to."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with out.open("w") as file:
        server = subprocess.Popen(
            [str(BIN / "lopa"), "serve", "--port", str(port), "--set", "group.num_cpus=0.25"],
            env=environment,
            stdout=file,
            stderr=file,
        )

    def is_ready() -> bool:
        assert server.poll() is None, out.read_text()
        return f"Serving demo (float32 on cpu) on {url}" in out.read_text()

    try:
        wait_until(is_ready, "the server", START_TIMEOUT_S)
        yield url
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_TIMEOUT_S) == 0, out.read_text()
    finally:
        server.kill()


def start_server(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> ServerProcess:
    """Run `lopa serve` on a free port, without waiting for it."""
    port = free_port()
    command = [sys.executable, "-m", "cluster.cli", "serve", "--port", str(port), *options]
    excluded = {"RAY_ADDRESS", "RAY_AUTH_MODE", "LOPA_API_KEYS"}
    inherited = {name: value for name, value in os.environ.items() if name not in excluded}
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
    return ServerProcess(process, f"http://127.0.0.1:{port}", folder)
