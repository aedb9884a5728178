"""What a decode group's replica counts of its master's reports."""

from __future__ import annotations

from actors.master import MasterStatus
from cluster.serving.replica.metrics import GroupMetrics


def test_counters_follow_a_group_and_the_one_in_its_place() -> None:
    group = GroupMetrics("m")
    for hits, saved in ((0, 0), (2, 64), (2, 64), (3, 80), (1, 16)):  # the last one is another group's
        group.on_status(MasterStatus(1, 0, 1, 8, 0, 0, 9, 0.0, None, None, hits, saved, "float32"))
    assert 'lopa_prefix_hits_total{model="m"} 4.0\n' in group.text()
    assert 'lopa_prefix_positions_total{model="m"} 96.0\n' in group.text()
