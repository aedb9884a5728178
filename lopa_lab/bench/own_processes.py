"""Ray and a server for the time of a measurement, and the processes of groups on that Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray

from actors.connection.ray_connection import LOCAL_RAY, connect_to_ray
from cluster.command_line.loopback import opener_for
from lopa_lab.bench.parent_death import end_with_parent
from lopa_ray.errors import ClusterError


@contextmanager
def own_ray(num_cpus: int, object_store_bytes: int) -> Iterator[None]:
    """Run the block connected to a Ray on this machine that ends with it. Raises ClusterError."""
    connect_to_ray(LOCAL_RAY, num_cpus=num_cpus, object_store_memory=object_store_bytes)
    try:
        yield
    finally:
        ray.shutdown()


def actor_processes(class_name: str) -> set[int]:
    """Ids of the processes on this machine that run an actor of the class; Ray names a process after its actor."""
    return {
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _read(folder / "cmdline").startswith(f"ray::{class_name}")
    }


def _read(path: Path) -> str:
    """The content of a file of a process; nothing if the process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.5


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """`lopa serve ARGUMENTS` on a free port, until the context ends; yields its address.

    Raises ClusterError with what it printed if it ends or is not ready in time.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "cluster.cli", "serve", "--port", str(port), *arguments]
    with tempfile.TemporaryDirectory(prefix="lopa-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent
            )
        try:
            _wait_until_ready(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with opener_for(url).open(f"{url}/health", timeout=POLL_S * 10):
                return
        except OSError:  # urllib's errors are OSErrors
            time.sleep(POLL_S)
    raise ClusterError(f"the server did not start:\n{log.read_text(errors='replace')[-1000:].strip()}")
