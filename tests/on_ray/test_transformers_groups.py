"""Groups whose model the package transformers runs: the same tokens as in one process, also when a worker is lost."""

from __future__ import annotations

import os
import signal

import pytest

from actors.engine import RayEngine
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids
from support.tiny_model import tiny_config

BY_TRANSFORMERS = {"implementation": "transformers"}

pytestmark = pytest.mark.nightly


def test_a_group_decodes_what_one_process_does() -> None:
    """Weights are converted by one worker, and used by the others as they lie in the object store."""
    config = tiny_config(model=BY_TRANSFORMERS, group={"num_workers": 2})
    with RayEngine.from_config(config) as engine:
        group = GroupUnderTest(engine, ReferenceResults(tiny_config(model=BY_TRANSFORMERS)))
        process = actor_pids("BranchWorker")[0]
        group.run_batch(3, during=lambda: os.kill(process, signal.SIGKILL))
        group.wait_for_workers(2)
