"""One Ray for all tests of this folder."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest
import ray

from support.group_under_test import ReferenceResults, reference_of


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
def reference() -> ReferenceResults:
    """Shared by all tests, so that each request is decoded once."""
    return reference_of()
