"""Groups with two steps in flight: the tokens of one process with one step at a time, also after workers are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.group_under_test import ReferenceResults, group_with_faults
from support.tiny_model import tiny_config

GROUPS: dict[str, dict[str, Any]] = {
    "3 workers": {"num_workers": 3},
    "2 workers, object store": {"num_workers": 2, "transfer": "object_store"},
    "2 workers of 2 shards": {"num_workers": 2, "tensor_parallel_size": 2},
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", GROUPS)
def test_tokens_do_not_depend_on_overlap(name: str, tmp_path: Path, reference: ReferenceResults) -> None:
    assert not tiny_config().overlap  # of the reference
    with group_with_faults(tmp_path, reference, overlap_schedule=True, **GROUPS[name]) as (group, faults):
        for count in (1, 2, 12):
            group.run_batch(count)
        for point, after in (("step", 5), ("source", 20), ("forward", 35), ("answer", 50)):
            group.run_batch(6, lambda point=point: faults.inject(point), after=after)
            group.run_until(lambda: not faults.pending)
            group.wait_for_workers(GROUPS[name]["num_workers"])
