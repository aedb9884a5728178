"""What a decode group's replica counts of its master's reports."""

from __future__ import annotations

from dataclasses import replace

from actors.master_status import MasterStatus
from cluster.serving.replica.metrics import GroupMetrics

STATUS = MasterStatus(
    workers=1,
    pending_workers=0,
    target_workers=1,
    max_num_seqs=8,
    in_flight=0,
    waiting=0,
    waiting_by_client={},
    steps=9,
    stalled_s=0.0,
    broken=None,
    last_error=None,
    prefix_hits=0,
    prefix_positions=0,
    failed_steps=0,
    out_of_memory_steps=0,
    max_step_rows=None,
    dtype="float32",
)


def test_counters_follow_a_group_and_the_one_in_its_place() -> None:
    group = GroupMetrics("m")
    # The last one is another group's.
    for hits, saved, failed in ((0, 0, 0), (2, 64, 1), (2, 64, 1), (3, 80, 3), (1, 16, 0)):
        group.on_status(replace(STATUS, prefix_hits=hits, prefix_positions=saved, out_of_memory_steps=failed))
    assert 'lopa_prefix_hits_total{model="m"} 4.0\n' in group.text()
    assert 'lopa_prefix_positions_total{model="m"} 96.0\n' in group.text()
    assert 'lopa_out_of_memory_steps_total{model="m"} 3.0\n' in group.text()


def test_queues_are_shown_by_key_and_all_addresses_as_one() -> None:
    group = GroupMetrics("m")
    for waiting in ({"key 1": 5, "address 10.0.0.1": 2, "address 10.0.0.2": 3}, {"key 2": 1}):
        group.on_status(replace(STATUS, waiting_by_client=waiting))
        lines = [
            line for line in group.text().splitlines() if line.startswith("lopa_client_requests_waiting{")
        ]
        numbers = {
            line.partition('client="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines
        }
        expected = {"no key": 5, "key 1": 5} if "key 1" in waiting else {"no key": 0, "key 1": 0, "key 2": 1}
        assert numbers == expected
