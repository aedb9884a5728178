"""The other ways to serve: on a running cluster, by `serve deploy`, `serve run` and `lopa serve`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lopa_ray.engine.local import LocalEngine
from support.client_request import check_answer
from support.paths import BIN
from support.ports import free_port
from support.ray_nodes import RayHead, run_head
from support.server_process import START_TIMEOUT_S, answers, lopa_serve, shipped_config
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    options = "--num-cpus=4 --object-store-memory=200000000 --include-dashboard=true"
    with run_head(tmp_path_factory.mktemp("head"), options) as running:
        running.environment |= {"RAY_ADDRESS": running.address, "RAY_DASHBOARD_ADDRESS": running.dashboard}
        yield running


def run(cluster: RayHead, *command: str) -> str:
    """The output of a command line tool."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_lopa_serve_on_a_cluster(cluster: RayHead, engines: dict[str, LocalEngine], tmp_path: Path) -> None:
    """Twice, since the first one has to leave room for the second."""
    for _ in range(2):
        with lopa_serve(tmp_path / "out", cluster.environment) as url:
            check_answer(url, engines["demo"])
        status = yaml.safe_load(run(cluster, "serve", "status", "--address", cluster.dashboard))
        assert not status["applications"]
        assert not answers(url)


def test_serve_deploy(cluster: RayHead, engines: dict[str, LocalEngine], tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    run(cluster, "serve", "deploy", str(shipped_config(tmp_path, port)), "--address", cluster.dashboard)
    try:
        wait_until(lambda: answers(url), "the deployment", START_TIMEOUT_S)
        check_answer(url, engines["demo"])
    finally:
        run(cluster, "serve", "shutdown", "--yes", "--address", cluster.dashboard)


def test_serve_run(cluster: RayHead, engines: dict[str, LocalEngine]) -> None:
    """On a Serve that is there already, since `serve run` takes no port."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    address = ["--address", cluster.address]
    run(cluster, "serve", "start", *address, "--http-port", str(port), "--proxy-location", "HeadOnly")
    run(cluster, "serve", "run", "cluster.serving.app:build", *address, "--non-blocking")
    wait_until(lambda: answers(url), "the application", START_TIMEOUT_S)
    check_answer(url, engines["demo"])
    run(cluster, "serve", "shutdown", "--yes", "--address", cluster.dashboard)
