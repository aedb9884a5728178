"""Where the files of a configured model are: in the package, in a folder, or on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from lopa_ray.config.config import Config
from lopa_ray.config.model_settings import DEMO_MODEL, ModelSettings
from lopa_ray.model.hub import HubName, download, pin

DEMO = "demo"


def pin_model(config: Config) -> Config:
    """The same configuration, with names on the Hub pinned to the commits that they stand for now.

    From then on the same weights are loaded, also by workers that come later, and a path that looks like a name on
    the Hub is a path. Raises CheckpointError.
    """
    model = config.model
    pinned = model.replace(
        path=model.path if model.path == DEMO else pin(model.path),
        lora=None if model.lora is None else pin(model.lora),
    )
    return config if pinned == model else config.replace(model=pinned)


def checkpoint_folder(model: ModelSettings, *, weights: bool = False) -> Path:
    """The checkpoint's folder on this machine, of pinned settings; from the Hub it has weights if asked for.

    Raises CheckpointError if it cannot be downloaded.
    """
    return DEMO_MODEL if model.path == DEMO else _folder(model.path, weights=weights)


def adapter_folder(model: ModelSettings) -> Path | None:
    """The adapter's folder on this machine, of pinned settings. Raises CheckpointError."""
    return None if model.lora is None else _folder(model.lora, weights=True)


def is_on_hub(model: ModelSettings) -> bool:
    """Whether a part of a pinned model comes from the Hub."""
    return any(source is not None and _is_pinned(source) for source in (model.path, model.lora))


def download_weights(model: ModelSettings) -> None:
    """Have all files of a pinned model on this machine. Raises CheckpointError."""
    checkpoint_folder(model, weights=model.load_format != "dummy")
    adapter_folder(model)


def _folder(source: str, *, weights: bool) -> Path:
    return download(source, weights=weights) if _is_pinned(source) else Path(source).expanduser()


def _is_pinned(source: str) -> bool:
    name = HubName.parse(source)
    return name is not None and name.is_pinned
