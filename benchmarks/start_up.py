"""Time and memory that starting a group takes: with one copy of the weights per node, and with one per worker.

    python benchmarks/start_up.py
    python benchmarks/start_up.py --workers 4 --layers 24 --rounds 3

Writes a checkpoint with random weights in Dream's layout to a temporary folder and starts a group on it: on a Ray
whose object store has room for the shared copy, and on one where it has not, so that each worker reads for
itself. Memory is what the workers' processes have, each shared page counted once (Linux: Pss).
"""

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


def write_checkpoint(folder: Path, layers: int, width: int) -> None:
    """Random weights in bf16, and the demo model's tokenizer."""
    shape = dataclasses.replace(
        load_config(DEMO_MODEL),
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 64,
        num_kv_heads=width // 128,
        head_dim=64,
        intermediate_size=4 * width,
    )
    save_model(random_model(shape, 0, torch.bfloat16, "cpu"), folder, dtype=torch.bfloat16)
    for file in DEMO_MODEL.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())


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


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024, help="hidden size, a multiple of 128")
    parser.add_argument(
        "--rounds", type=int, default=3, help="starts of each kind, in turns; medians are shown"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), arguments.layers, arguments.width)
        model = {"path": folder, "max_num_seqs": 1, "max_model_len": 256}
        config = Config.parse({"model": model, "group": {"num_workers": arguments.workers}})
        size = ModelSpec.read(config).weight_bytes
        store_sizes = {
            "one copy per worker": SMALL_STORE_BYTES,
            "one copy per node": 3 * size + SMALL_STORE_BYTES,
        }
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in store_sizes}
        for _ in range(arguments.rounds):
            for name, store_bytes in store_sizes.items():
                measured[name].append(start_group(config, store_bytes))
    print(f"{arguments.workers} workers, weights of {size / MIB:.0f} MiB\n")
    rows = [["", "ready after", "memory of all workers", "per worker"]]
    for name, starts in measured.items():
        seconds, memory = (statistics.median(column) for column in zip(*starts, strict=True))
        per_worker = memory / arguments.workers
        rows.append([name, f"{seconds:.1f} s", f"{memory:.0f} MiB", f"{per_worker:.0f} MiB"])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
