"""One Ray for all tests of this folder."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest
import ray

from support.groups import config
from support.trials import Oracle


@pytest.fixture(scope="session", autouse=True)
def local_ray() -> Iterator[None]:
    """Few logical CPUs, a small object store, nothing else. Workers import this folder's helpers."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=150 * 2**20,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """What the requests of `trials` must yield."""
    return Oracle(config())
