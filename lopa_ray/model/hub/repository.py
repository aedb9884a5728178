"""Checkpoints and adapters by their names on the Hugging Face Hub: `org/name`, or `org/name@revision`.

A name is pinned to a commit, whose files are downloaded into the Hub's cache: neither code nor pickles. Variables of
huggingface_hub (`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`) have their meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.hub.failures import describe, named_failures

_COMMIT = re.compile(r"[0-9a-f]{40}")
# What git accepts between the slashes of a revision. It becomes a path in the cache, so ".." must not pass.
_REVISION_PART = re.compile(r"(?![.-])(?!.*\.\.)[^\s\x00-\x1f\x7f~^:?*\[\\]+")

_CONFIGURATION = ("*.json", "*.jinja")
_TOKENIZER = (
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tiktoken.model",
    "tokenizer.model",
    "vocab.txt",
)
_WEIGHTS = ("*.safetensors",)
# A star matches slashes too. Folders have copies for other programs (`original`, `onnx`) or of other training steps.
_BELOW = "*/*"


@dataclass(frozen=True, slots=True)
class HubName:
    repository: str
    revision: str | None = None  # A branch, a tag or a commit; None is the repository's main branch

    @staticmethod
    def parse(source: str) -> HubName | None:
        """The name that `source` is, or None if it is a path. What exists is a path, whatever it is called. So is what
        no repository can be called."""
        repository, at, revision = source.partition("@")
        if source.startswith(("/", "./", "../", "~")) or repository.count("/") != 1 or os.path.exists(source):
            return None
        if at and not all(map(_REVISION_PART.fullmatch, revision.split("/"))):
            return None
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # not in its __all__

        try:
            validate_repo_id(repository)
        except HFValidationError:
            return None
        return HubName(repository, revision or None)

    @property
    def is_pinned(self) -> bool:
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def short_name(source: str) -> str:
    """The short name of a model: its name on the Hub without a revision, or the last part of its path."""
    name = HubName.parse(source)
    return Path(source).name if name is None else name.repository


def pin(source: str) -> str:
    """A name on the Hub with the commit that it stands for now, or without a connection stood for last; a path, and a
    name with its commit, as it is, without a request. Raises `CheckpointError` if neither the Hub nor the cache can
    tell."""
    name = HubName.parse(source)
    return source if name is None else str(_pin(name))


def download(source: str, *, weights: bool, subfolder: str = "") -> Path:
    """The local folder of a name on the Hub; of a path that path, whether or not there is something. It has the JSON
    and tokenizer files of the repository, or of its `subfolder`, and with `weights` the safetensors files. A pinned
    name that the cache has is served without a request. Raises `CheckpointError`, naming the repository and its
    revision, for whatever keeps it from being read."""
    name = HubName.parse(source)
    if name is None:
        return Path(os.path.expanduser(source))
    name = _pin(name)
    prefix = f"{subfolder}/" if subfolder else ""
    patterns = (*_CONFIGURATION, *_TOKENIZER, *(_WEIGHTS if weights else ()))
    from huggingface_hub import is_offline_mode, snapshot_download

    get = partial(
        snapshot_download,
        name.repository,
        revision=name.revision,
        allow_patterns=[prefix + pattern for pattern in patterns],
        ignore_patterns=[prefix + _BELOW],
        library_name="lopa-ray",
    )
    with named_failures(name.repository, name.revision):
        folder = _find_cached(name, get) or get(local_files_only=is_offline_mode())
    if not (place := Path(folder, prefix)).is_dir():
        level = f"in its folder {subfolder}" if prefix else "at its top level"
        raise CheckpointError(
            f"{describe(name.repository, name.revision)}: got no .json or .safetensors file {level}; need a checkpoint "
            "or an adapter as Transformers and PEFT save them, not GGUF files: name another repository"
        )
    return place


def _pin(name: HubName) -> HubName:
    if name.is_pinned:
        return name
    from huggingface_hub import HfApi, constants, is_offline_mode

    class TimedHfApi(HfApi):
        def repo_info(self, *args: Any, **kwargs: Any) -> Any:
            # There is no time limit otherwise: where a firewall drops packets, it takes minutes to turn to the cache.
            return super().repo_info(*args, **{"timeout": constants.HF_HUB_ETAG_TIMEOUT, **kwargs})

    with named_failures(name.repository, name.revision):
        revision = TimedHfApi(library_name="lopa-ray").resolve_revision(
            name.repository, revision=name.revision, local_files_only=is_offline_mode()
        )
        return replace(name, revision=revision.resolved)


def _find_cached(name: HubName, get: Callable[..., str]) -> str | None:
    """The snapshot of a pinned name, if the cache is known to have all files that `get` asks for. huggingface_hub would
    find them as well, but only after a request for the statistics that it sends."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    try:
        # Without the list of a commit's files a folder that has a part of them counts as complete.
        get_cached_repo_tree(name.repository, revision=name.revision)
        return get(local_files_only=True)
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
        return None
