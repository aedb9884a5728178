"""Places where jobs write."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
    """Like an object store: there are no folders, and so no empty ones either."""

    protocol = "bucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Nothing to do."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing to do."""


fsspec.register_implementation("bucket", Bucket)


@pytest.fixture(params=["local", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to write: with renames, and, like an object store, without."""
    return str(tmp_path) if request.param == "local" else f"bucket://{tmp_path.name}"
