"""A Ray of a benchmark's own, and the processes of groups on it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray


@contextmanager
def own_ray(num_cpus: int, object_store_bytes: int) -> Iterator[None]:
    """Run the block connected to a Ray on this machine that ends with it."""
    ray.init(
        address="local",
        num_cpus=num_cpus,
        object_store_memory=object_store_bytes,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
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


def proportional_mib(process: int) -> float:
    """Memory of a process in MiB; of what n processes share, 1/n."""
    match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1024


def _read(path: Path) -> str:
    """The content of a file of a process; nothing if the process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
