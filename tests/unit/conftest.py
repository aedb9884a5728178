"""Fixtures that several files of unit tests need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.paths import MODELS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A published checkpoint that may be changed."""
    return Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))
