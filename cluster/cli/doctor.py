"""`lopa doctor`: the parts of this machine that decoding and serving need, and what to do where one is missing."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub.constants import HF_HUB_CACHE
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cluster.cli.checkpoint_needs import format_bytes
from cluster.cli.model_families import console_for_lines, known_families
from lopa_ray.execution.device import DEVICES, Device

GIB = 1 << 30
SHARED_MEMORY = Path("/dev/shm")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MIN_SHARED_BYTES = GIB  # less of it makes Ray keep its object store on the disk
MIN_FREE_BYTES = 4 * GIB
ROOM = 1.2  # memory that a model needs: times the bytes of its weights, for K/V and activations


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    found: str
    advice: str = ""
    """What to do; empty if nothing is missing."""
    blocks: bool = False
    """Whether no model can be decoded until that is done."""


def print_findings(port: int) -> bool:
    """Print a line per part. Returns whether models can be decoded on this machine."""
    table = Table("", "found", "what to do", box=SIMPLE_HEAD, pad_edge=False)
    findings = [*_software(), *_devices(), *_room(port)]
    for finding in findings:
        mark = "✗" if finding.blocks else "!" if finding.advice else "✓"
        table.add_row(*map(Text, (f"{mark} {finding.part}", finding.found, finding.advice)))
    console_for_lines().print(table)
    return not any(finding.blocks for finding in findings)


def _software() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for name, needed in (("lopa-ray", True), ("torch", True), ("transformers", True), ("ray", True)):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", "install lopa-ray with pip, or run make install", needed)
    address = os.environ.get("RAY_ADDRESS")
    yield Finding("RAY_ADDRESS", address or "not set: commands that need Ray start one on this machine")


def _devices() -> Iterator[Finding]:
    sizes = {}
    for name, device in DEVICES.items():
        if reason := device.unavailable_reason():
            yield Finding(name, "not usable", reason)
            continue
        sizes[name] = _memory_bytes(device)
        unit = "cores" if name == "cpu" else "devices"
        number = os.cpu_count() if name == "cpu" else device.count()
        yield Finding(
            name, f"{number} {unit}, memory of {format_bytes(sizes[name])}" + " each" * (name != "cpu")
        )
    if "cuda" in sizes:
        for module, use in (("triton", "the fastest kernels"), ("flash_attn", "one more attention backend")):
            missing = find_spec(module) is None
            yield Finding(module, "missing" if missing else "installed", f"install it for {use}" * missing)
    name, size = max(sizes.items(), key=lambda item: item[1])
    rows = [row for family in known_families() for row in family["checkpoints"]]
    fitting = [row["name"] for row in rows if row["weights_gib"] * ROOM * GIB <= size]
    largest = f"{len(fitting)} of the {len(rows)} that lopa models lists fit on one {name}: weights of up to "
    largest += format_bytes(size / ROOM)
    advice = "" if len(fitting) == len(rows) else "larger ones: several devices, with --tensor-parallel-size"
    yield Finding("checkpoints", largest, advice)


def _memory_bytes(device: Device | None = None) -> int:
    """Of one device; of this machine or its container without one."""
    if device is not None and device.torch_name != "cpu":
        import torch

        return int(getattr(torch, device.torch_name.partition(":")[0]).mem_get_info()[1])
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return physical if limit == "max" else min(physical, int(limit))


def _room(port: int) -> Iterator[Finding]:
    cache = Path(HF_HUB_CACHE)
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    enough = free >= MIN_FREE_BYTES
    yield Finding(
        "disk", f"{format_bytes(free)} free for {cache}", "" if enough else "HF_HOME names another folder"
    )
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        advice = (
            ""
            if free >= MIN_SHARED_BYTES
            else "docker run --shm-size=4g; else Ray keeps its objects on the disk"
        )
        yield Finding("shared memory", f"{format_bytes(free)} free in {SHARED_MEMORY}", advice)
    with socket.socket() as tried:
        taken = tried.connect_ex(("127.0.0.1", port)) == 0
    yield Finding(f"port {port}", "taken" if taken else "free", "lopa serve --port takes another" * taken)
