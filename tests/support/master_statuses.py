"""The status of a master that has nothing to do, for tests that change a field of it."""

from __future__ import annotations

from actors.master_status import MasterStatus

HEALTHY = MasterStatus(
    workers=2,
    pending_workers=0,
    target_workers=2,
    max_num_seqs=4,
    in_flight=0,
    waiting=0,
    waiting_by_client={},
    steps=0,
    stalled_s=0.0,
    broken=None,
    last_error=None,
    prefix_hits=0,
    prefix_positions=0,
    failed_steps=0,
    lost_workers=0,
    out_of_memory_steps=0,
    max_step_rows=4096,
    dtype="float32",
)
