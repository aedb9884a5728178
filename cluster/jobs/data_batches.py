"""What the classes for `Dataset.map_batches` share: their engine, and batches of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch

from actors.engine import RayEngine
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError


def start_engine(config: Config) -> Engine:
    """The engine of an actor of Ray Data: in its process, or a group with actors of its own.

    Raises SettingsError if both reserve accelerators, and what the engines raise.
    """
    if config.group.max_actors == 1:
        torch.set_num_threads(config.group.threads)
        return LocalEngine.from_config(config)
    if config.model.device != "cpu" and ray.is_initialized():
        reserved = ray.get_runtime_context().get_accelerator_ids()
        if any(reserved.values()):
            raise SettingsError(
                f"group: got {config.group.max_actors} actors, which reserve their own accelerators, besides those "
                "that map_batches reserves for this process; leave num_gpus out there, or set group.num_workers and "
                "tensor_parallel_size to 1"
            )
    return RayEngine.from_config(config)


def as_table(batch: Any) -> Any:
    """A batch of Ray Data as a pyarrow.Table. Raises SettingsError for another format than numpy and pyarrow."""
    import pyarrow

    if isinstance(batch, pyarrow.Table):
        return batch
    if isinstance(batch, Mapping):
        from ray.data.block import BlockAccessor

        return BlockAccessor.batch_to_arrow_block(dict(batch))
    raise SettingsError(
        f"got a batch of type {type(batch).__name__}; allowed: batch_format numpy (the default) or pyarrow"
    )


def plain(value: Any) -> Any:
    """Lists for arrays of numbers, and whole numbers again where Ray Data has made floats of them, as it does beside
    nulls in numpy's format."""
    if isinstance(value, dict):
        return {key: plain(field) for key, field in value.items()}
    if isinstance(value, list | np.ndarray):
        return [plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
