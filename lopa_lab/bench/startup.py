"""`lopa bench startup`: time and memory that starting a group takes.

Workers of a node read the weights once and share them, if its object store has room for them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import torch

from actors.engine import RayEngine
from lopa_lab.bench.measurements import Measurements, Row, number
from lopa_lab.bench.own_processes import actor_processes, own_ray, proportional_mib
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint import save_model
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.weights import random_model

MIB = 2**20
SMALL_STORE_BYTES = 100 * MIB


def measure_starts(name: str, model: dict[str, Any], workers: Sequence[int], rounds: int) -> Measurements:
    """Start groups of so many workers `rounds` times, in turns: on a Ray with a small object store, and on one whose
    store has room for the weights. `model`: settings of the section. Raises what engines raise."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="lopa-bench-") as folder:
        model = _with_weights(model, Path(folder))
        size = ModelSpec.read(Config.parse({"model": model})).weight_bytes
        stores = {"small": SMALL_STORE_BYTES, "large": 3 * size + SMALL_STORE_BYTES}
        for count in workers:
            config = Config.parse({"model": model, "group": {"num_workers": count}})
            starts: dict[str, list[Row]] = {store: [] for store in stores}
            for _ in range(rounds):
                for store, store_bytes in stores.items():
                    starts[store].append(_start(config, store_bytes))
            rows += [
                {
                    "model": name,
                    "workers": count,
                    "object store": store,
                    "weights MiB": size / MIB,
                    **{
                        figure: statistics.median(number(s, figure) for s in of_store)
                        for figure in of_store[0]
                    },
                }
                for store, of_store in starts.items()
            ]
    return Measurements(
        ("model", "workers", "object store"),
        rows,
        f"Medians of {rounds} starts, each on a Ray of its own that runs already: from RayEngine.from_config to a "
        "group that takes requests, wall time; the phases are engine.start_phases. Workers share one copy of the "
        f"weights if it fits into three quarters of the object store: the small one has {SMALL_STORE_BYTES // MIB} "
        "MiB, the large one room for them. Memory is that of the workers' processes, each page that n of them "
        "share counted as 1/n (Pss).",
    )


def _with_weights(model: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same model as a checkpoint in files, in bfloat16, if its weights were to be random.

    Raises SettingsError for a model that transformers runs.
    """
    if model.get("load_format") != "dummy":
        return model
    copytree(model["path"], folder, dirs_exist_ok=True)
    shape = ModelSpec.read(Config.parse({"model": model})).model
    if not isinstance(shape, NativeConfig):
        raise SettingsError(
            f"{model['path']}: random weights are those of native models; name another checkpoint"
        )
    save_model(random_model(shape, 0, torch.bfloat16, "cpu"), folder, dtype=torch.bfloat16)
    return {**model, "path": str(folder), "load_format": "safetensors"}


def _start(config: Config, store_bytes: int) -> Row:
    """The figures of one start."""
    with own_ray(config.group.num_workers, store_bytes):
        others = actor_processes("BranchWorker")
        began = time.perf_counter()
        with RayEngine.from_config(config) as engine:
            seconds = time.perf_counter() - began
            phases = {f"{phase} s": spent for phase, spent in engine.start_phases.items()}
            memory = sum(map(proportional_mib, actor_processes("BranchWorker") - others))
            return {"ready s": seconds, **phases, "workers MiB": memory}
