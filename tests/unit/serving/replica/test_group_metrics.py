"""What a decode group's replica counts of its master's reports."""

from __future__ import annotations

from actors.master_status import MasterStatus
from cluster.serving.replica.metrics import GroupMetrics


def test_counters_follow_a_group_and_the_one_in_its_place() -> None:
    group = GroupMetrics("m")
    # The last one is another group's.
    for hits, saved, failed in ((0, 0, 0), (2, 64, 1), (2, 64, 1), (3, 80, 3), (1, 16, 0)):
        group.on_status(
            MasterStatus(
                workers=1,
                pending_workers=0,
                target_workers=1,
                max_num_seqs=8,
                in_flight=0,
                waiting=0,
                steps=9,
                stalled_s=0.0,
                broken=None,
                last_error=None,
                prefix_hits=hits,
                prefix_positions=saved,
                failed_steps=0,
                out_of_memory_steps=failed,
                max_step_rows=None,
                dtype="float32",
            )
        )
    assert 'lopa_prefix_hits_total{model="m"} 4.0\n' in group.text()
    assert 'lopa_prefix_positions_total{model="m"} 96.0\n' in group.text()
    assert 'lopa_out_of_memory_steps_total{model="m"} 3.0\n' in group.text()
