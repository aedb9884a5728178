"""Names for the weights of a folder, and for problems, that no others have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from lopa_lab.word_problems import Problem
from lopa_ray.config.model_settings import ModelSettings

EDGE_BYTES = 1 << 20
"""Read from the beginning and from the end of each file: weights may have many gigabytes."""


def fingerprint(model: ModelSettings) -> str | None:
    """Of the names, sizes and edges of a folder's weight files and configuration; None for a name on the Hub."""
    from lopa_ray.execution.model_files import checkpoint_folder

    if not (model.path == "demo" or Path(model.path).is_dir()):
        return None
    digest = hashlib.sha256()
    folder = checkpoint_folder(model)
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()[:16]


def text_fingerprint(problems: Iterable[Problem]) -> str:
    """Of the questions and answers of problems."""
    return hashlib.sha256(repr([(each.question, each.answer) for each in problems]).encode()).hexdigest()[:16]
