"""Nodes of a Ray cluster as processes of their own, started as an operator starts them: `ray start`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from support.paths import PROGRAMS
from support.server_process import free_port

START_S = 120.0

TEST_NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
"""A node of `three_nodes`."""


@contextlib.contextmanager
def three_nodes() -> Iterator[Cluster]:
    """Ray's test cluster, whose nodes are children of this process; it is connected to the first one."""
    cluster = Cluster(initialize_head=True, head_node_args={**TEST_NODE, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(**TEST_NODE)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@dataclass
class Head:
    """A running head."""

    process: subprocess.Popen[bytes]
    address: str
    dashboard: str
    environment: dict[str, str]


def environment() -> dict[str, str]:
    """What nodes and their clients are started with: workers find the project and the tests' own modules."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**inherited, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def head(folder: Path, *options: str, prefix: Sequence[str] = (), host: str = "127.0.0.1") -> Iterator[Head]:
    """A head on ports of its own; `prefix` is put in front of its command."""
    port, dashboard = free_port(), free_port()
    # Not in `folder`: the names of Ray's sockets must not be long.
    temporary = Path(tempfile.mkdtemp(prefix="lopa-", dir="/tmp"))
    process = start_node(
        folder / "head.log",
        f"--head --node-ip-address={host} --port={port}",
        f"--dashboard-host=127.0.0.1 --dashboard-port={dashboard} --ray-client-server-port={free_port()}",
        f"--dashboard-agent-listen-port={free_port()} --temp-dir={temporary}",
        *options,
        prefix=prefix,
    )
    try:
        yield Head(process, f"{host}:{port}", f"http://127.0.0.1:{dashboard}", environment())
    finally:
        end(process)
        shutil.rmtree(temporary, ignore_errors=True)


def start_node(log: Path, *options: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """`ray start --block` with the options, ready for work."""
    words = " ".join(options).split()
    command = [*prefix, str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    began = time.monotonic()
    while "--block" not in log.read_text():
        if process.poll() is not None or time.monotonic() - began > START_S:
            end(process)
            raise AssertionError(f"the node did not start: {log.read_text()}")
        time.sleep(0.2)
    return process


def told_by(program: str, *arguments: str, within_s: float = 280) -> Any:
    """The JSON that one of `tests/programs` prints last. It has a Ray of its own."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node and all that hangs on it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for each in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()
