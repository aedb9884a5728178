"""The other ways to serve: on a running cluster, by `serve deploy`, `serve run` and `lopa serve`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from lopa_ray.config.yaml_files import serve_config
from lopa_ray.engine.local import LocalEngine
from support.client_request import ClientRequest
from support.ports import free_port
from support.processes import processes_in_session
from support.server_process import START_TIMEOUT_S, STOP_TIMEOUT_S
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent


@dataclass
class Cluster:
    """A head node that this test started."""

    address: str
    dashboard: str

    @property
    def environment(self) -> dict[str, str]:
        ray = {"RAY_ADDRESS": self.address, "RAY_DASHBOARD_ADDRESS": self.dashboard, "RAY_AUTH_MODE": "token"}
        return {**os.environ, **ray}

    def run(self, *command: str) -> str:
        """A command line tool; its output."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ports = {name: free_port() for name in ("port", "dashboard-port", "dashboard-agent-listen-port")}
    options = [f"--{name}={port}" for name, port in ports.items()]
    # Paths of sockets must be short, and the default folder tells other programs about the cluster.
    folder = tempfile.mkdtemp(prefix="lopa-", dir="/tmp")
    command = [str(BIN / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4"]
    process = subprocess.Popen(
        [*command, "--object-store-memory=200000000", f"--temp-dir={folder}", *options],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started = Cluster(f"127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['dashboard-port']}")
    try:
        wait_until(lambda: answers(f"{started.dashboard}/api/gcs_healthz"), START_TIMEOUT_S, "the cluster")
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(processes_in_session(process.pid), timeout=20)
        for left in processes_in_session(process.pid):
            left.kill()
        shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def check_answer(url: str, engine: LocalEngine) -> None:
    request = ClientRequest(settings={"max_new_tokens": 32})
    with httpx.Client(base_url=url, timeout=60) as client:
        assert request.send(client) == request.decode_locally(engine)


def applications(cluster: Cluster) -> Any:
    return yaml.safe_load(cluster.run("serve", "status", "--address", cluster.dashboard))["applications"]


def test_lopa_serve_on_a_cluster(cluster: Cluster, engines: dict[str, LocalEngine], tmp_path: Path) -> None:
    """Twice, since the first one has to leave room for the second."""
    for _ in range(2):
        url = serve_once(cluster, engines["demo"], tmp_path / "out")
        assert not applications(cluster)
        assert not answers(f"{url}/health")


def serve_once(cluster: Cluster, engine: LocalEngine, out: Path) -> str:
    """Start it, send it a request, stop it; returns its URL."""
    port = free_port()
    with out.open("w") as file:
        server = subprocess.Popen(
            [str(BIN / "lopa"), "serve", "--port", str(port), "--set", "group.num_cpus=0.25"],
            env=cluster.environment,
            stdout=file,
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert server.poll() is None, out.read_text()
        return f"Serving demo (float32 on cpu) on {url}" in out.read_text()

    try:
        wait_until(ready, START_TIMEOUT_S, "the server")
        check_answer(url, engine)
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_TIMEOUT_S) == 0, out.read_text()
    finally:
        server.kill()
    return url


def test_serve_deploy(cluster: Cluster, engines: dict[str, LocalEngine], tmp_path: Path) -> None:
    """The config that ships, but for its port and what Ray counts as a worker's CPUs."""
    values = yaml.safe_load(serve_config().read_text())
    values["http_options"]["port"] = free_port()
    values["applications"][0]["args"]["models"][0]["group"] = {"num_cpus": 0.25}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(values))
    url = f"http://127.0.0.1:{values['http_options']['port']}"
    cluster.run("serve", "deploy", str(tmp_path / "serve.yaml"), "--address", cluster.dashboard)
    try:
        wait_until(lambda: answers(f"{url}/health"), START_TIMEOUT_S, "the deployment")
        check_answer(url, engines["demo"])
    finally:
        cluster.run("serve", "shutdown", "--yes", "--address", cluster.dashboard)


def test_serve_run(cluster: Cluster, engines: dict[str, LocalEngine]) -> None:
    """On a Serve that is there already, since `serve run` takes no port."""
    port = free_port()
    address = ["--address", cluster.address]
    cluster.run("serve", "start", *address, "--http-port", str(port), "--proxy-location", "HeadOnly")
    cluster.run("serve", "run", "cluster.serving.app:build", *address, "--non-blocking")
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(f"{url}/health"), START_TIMEOUT_S, "the application")
    check_answer(url, engines["demo"])
    cluster.run("serve", "shutdown", "--yes", "--address", cluster.dashboard)
