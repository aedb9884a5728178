"""`lopa bench startup`: time and memory that starting a group takes."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import ray
import torch

from actors.engine import RayEngine
from lopa_ray.config.config import Config
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.execution.model_loader import ModelSpec
from lopa_ray.model.checkpoint import load_config, save_model
from lopa_ray.model.weights import random_model
from tables import markdown_table

MIB = 2**20
SMALL_STORE_BYTES = 100 * MIB


def start_group(config: Config, store_bytes: int) -> tuple[float, float]:
    """Seconds until the group is ready, and MiB of all workers together."""
    ray.init(
        address="local",
        num_cpus=config.group.num_workers,
        object_store_memory=store_bytes,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        began = time.perf_counter()
        with RayEngine.from_config(config):
            seconds = time.perf_counter() - began
            return seconds, sum(map(proportional_mib, branch_workers()))
    finally:
        ray.shutdown()


def branch_workers() -> list[psutil.Process]:
    """Those of this process's Ray; an actor's process is named after its class."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "BranchWorker" in " ".join(child.cmdline())]


def proportional_mib(process: psutil.Process) -> float:
    """Memory of a process; of what n processes share, 1/n."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    match = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1024


