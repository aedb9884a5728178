"""A folder with changed weights of the demo model, and an engine of this model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lopa_ray import LocalEngine
from support.changed_weights import changed_tensors, folder_of


@pytest.fixture(scope="session")
def changed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(changed_tensors(), tmp_path_factory.mktemp("weights") / "changed")


@pytest.fixture
def demo_engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_pretrained("demo") as engine:
        yield engine
