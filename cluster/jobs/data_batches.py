"""Common code of the classes for `Dataset.map_batches`: their engine, and batches of Ray Data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """Start an engine here, or a group with actors of its own. Raises SettingsError if both reserve accelerators."""
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


def check_new_columns(names: Collection[str], prefix: str, added: Iterable[str], what: str) -> None:
    """Raises SettingsError if a batch has a column already that `what` adds."""
    taken = sorted({prefix + name for name in added} & set(names))
    if taken:
        raise SettingsError(
            f"got a column {taken[0]!r}, and {what} add one of that name; set output_prefix, which is put before the "
            "added names"
        )


def with_columns(table: Any, prefix: str, types: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pyarrow.Table with further columns. `types`: see `RESULT_TYPES`; a batch may have nulls alone."""
    import pyarrow

    for name, kind in types.items():
        of_values = pyarrow.list_(pyarrow.int64()) if kind == "list" else pyarrow.type_for_alias(kind)
        values = pyarrow.array([row.get(name) for row in rows], of_values)
        table = table.append_column(prefix + name, values)
    return table


def plain(value: Any) -> Any:
    """Lists for arrays, and whole numbers again where Ray Data has made floats of them, as it does with nulls."""
    if isinstance(value, dict):
        return {key: plain(field) for key, field in value.items()}
    if isinstance(value, list | np.ndarray):
        return [plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
