"""Nodes of a Ray cluster as processes of their own, started as an operator starts them: `ray start`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from support.paths import BIN
from support.ports import free_port
from support.processes import kill_process_tree, subprocess_environment
from support.waiting import wait_until

START_TIMEOUT_S = 120.0

TOKEN_MODE = {"RAY_AUTH_MODE": "token"}
"""What is to be set on all nodes and for all clients of a cluster that is made by hand."""

NODE_ARGS = {"num_cpus": 2, "resources": {"node": 1.0}, "object_store_memory": 80 * 2**20}
"""Resources of each node of `three_node_cluster`."""


@contextlib.contextmanager
def three_node_cluster() -> Iterator[Cluster]:
    """Ray's test cluster, whose nodes are children of this process; it is connected to the first one."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE_ARGS, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(**NODE_ARGS)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@dataclass
class RayHead:
    """A running head node, and the environment that it was started with."""

    process: subprocess.Popen[bytes]
    address: str
    dashboard: str
    environment: dict[str, str]

    def job_client(self) -> JobSubmissionClient:
        """For this process, which has its mode of authentication from another Ray."""
        token = self.environment["RAY_AUTH_TOKEN"]
        return JobSubmissionClient(self.dashboard, headers={"Authorization": f"Bearer {token}"})


@contextlib.contextmanager
def run_head(
    folder: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RayHead]:
    """A head node on ports of its own, when it is ready."""
    environment = {**subprocess_environment(), **TOKEN_MODE} if environment is None else dict(environment)
    port, dashboard = free_port(), free_port()
    # Not in `folder`: the names of Ray's sockets must not be long.
    temp_dir = Path(tempfile.mkdtemp(prefix="lopa-", dir="/tmp"))
    arguments = [
        f"--head --node-ip-address=127.0.0.1 --port={port}",
        f"--dashboard-host=127.0.0.1 --dashboard-port={dashboard} --ray-client-server-port={free_port()}",
        f"--dashboard-agent-listen-port={free_port()} --temp-dir={temp_dir}",
        *options,
    ]
    command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats"]
    log = folder / "head.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *" ".join(arguments).split()],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def is_ready() -> bool:
        assert process.poll() is None, f"the node did not start: {log.read_text()}"
        return "--block" in log.read_text()

    try:
        wait_until(is_ready, "the node to start", START_TIMEOUT_S)
        yield RayHead(process, f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", environment)
    finally:
        kill_process_tree(process)
        shutil.rmtree(temp_dir, ignore_errors=True)
