"""Everything here needs a CUDA device."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One Ray for all groups of this folder. Workers import the project and the tests' helpers."""
    import ray

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
