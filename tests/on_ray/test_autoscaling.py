"""A group that follows its load by itself: more workers while it decodes, fewer when it is idle, equal tokens."""

from __future__ import annotations

import pytest

from actors.engine import RayEngine
from lopa_ray.errors import SettingsError
from support.group_under_test import GroupUnderTest, ReferenceResults, wait_for_status
from support.tiny_model import tiny_config

SCALING = {"max_workers": 3, "target": 2.0}


@pytest.mark.nightly
def test_it_grows_while_it_decodes_and_shrinks_when_it_is_idle(reference: ReferenceResults) -> None:
    with RayEngine.from_config(tiny_config(group={"num_workers": 1, "scaling": SCALING})) as engine:
        group = GroupUnderTest(engine, reference)
        group.run_until(lambda: engine.status().workers == 3)
        wait_for_status(engine, lambda status: status.workers == 1, "the group to shrink")
        assert engine.status().target_workers == 1
        with pytest.raises(SettingsError, match=r"got 4 workers; allowed: 1 to 3 \(group\.scaling\)"):
            engine.resize(4)
        assert engine.status().target_workers == 1
        engine.resize(2)
        assert engine.status().target_workers == 2
        group.run_batch(3)
