"""Everything here needs a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder without one."""
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no GPU here"))
