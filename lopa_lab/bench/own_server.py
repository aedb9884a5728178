"""A server for the time of a measurement."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lopa_ray.errors import ClusterError

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
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
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
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=POLL_S * 10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    raise ClusterError(f"the server did not start:\n{log.read_text(errors='replace')[-1000:].strip()}")
