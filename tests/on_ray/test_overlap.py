"""Groups with two steps in flight: the tokens of one process with one step at a time, also after workers are lost."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from support.group_under_test import NUM_WORKERS, ReferenceResults, group_with_faults
from support.tiny_model import tiny_config

GROUPS: dict[str, dict[str, Any]] = {
    "1 worker": {"num_workers": 1},
    "3 workers": {"num_workers": 3},
    "2 workers, object store": {"num_workers": 2, "transfer": "object_store"},
    "2 workers of 2 shards": {"num_workers": 2, "tensor_parallel_size": 2},
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", GROUPS)
def test_tokens_do_not_depend_on_overlap(name: str, tmp_path: Path, reference: ReferenceResults) -> None:
    assert not tiny_config().overlap  # of the reference
    with group_with_faults(tmp_path, reference, overlap_schedule=True, **GROUPS[name]) as (group, _):
        for count in (1, 2, 7, 12):
            group.run_batch(count)
        group.wait_for_workers(GROUPS[name]["num_workers"])


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["step", "source", "forward", "answer"])
def test_nor_on_losses_with_two_steps_in_flight(
    point: str, tmp_path: Path, reference: ReferenceResults
) -> None:
    draw = random.Random(point)
    with group_with_faults(tmp_path, reference, overlap_schedule=True) as (group, faults):
        for _ in range(2):
            group.run_batch(6, lambda: faults.inject(point, 1, signal.SIGKILL), after=draw.randrange(1, 60))
            group.run_until(lambda: not faults.pending)
            group.wait_for_workers(NUM_WORKERS)
