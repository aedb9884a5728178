"""Locates the files of a configured model: in the package, in a folder, or on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.config.model_settings import DEMO_MODEL, ModelSettings
from lopa_ray.model.hub import HubName, download, pin

DEMO = "demo"

ConfigT = TypeVar("ConfigT", bound=ExecutionConfig)


def pin_model(config: ConfigT) -> ConfigT:
    """The same configuration, with names on the Hub pinned to their current commits.

    All workers then load the same weights, also workers that join later. A path that is not pinned is a local folder
    from then on, even if it looks like a name on the Hub. Raises CheckpointError if a name cannot be resolved.
    """
    model = config.model
    pinned = model.replace(
        path=model.path if model.path == DEMO else pin(model.path),
        lora=None if model.lora is None else pin(model.lora),
    )
    return config if pinned == model else config.replace(model=pinned)


def checkpoint_folder(model: ModelSettings, *, weights: bool = False) -> Path:
    """The checkpoint's folder on this machine. `model` has pinned names.

    Weights on the Hub are downloaded only with `weights`. Raises CheckpointError if a download fails.
    """
    return DEMO_MODEL if model.path == DEMO else _folder(model.path, weights=weights)


def adapter_folder(model: ModelSettings) -> Path | None:
    """The adapter's folder on this machine, or None. `model` has pinned names. Raises CheckpointError."""
    return None if model.lora is None else _folder(model.lora, weights=True)


def is_on_hub(model: ModelSettings) -> bool:
    """Whether the checkpoint or the adapter comes from the Hub. `model` has pinned names."""
    return any(source is not None and _is_pinned(source) for source in (model.path, model.lora))


def download_weights(model: ModelSettings) -> None:
    """Download all files of a model with pinned names to this machine. Raises CheckpointError."""
    checkpoint_folder(model, weights=model.load_format != "dummy")
    adapter_folder(model)


def _folder(source: str, *, weights: bool) -> Path:
    return download(source, weights=weights) if _is_pinned(source) else Path(source).expanduser()


def _is_pinned(source: str) -> bool:
    name = HubName.parse(source)
    return name is not None and name.is_pinned
