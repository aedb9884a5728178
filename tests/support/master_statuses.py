"""The status of a master that has nothing to do, for tests that change a field of it."""

from __future__ import annotations

from actors.group.master_status import MasterStatus

HEALTHY = MasterStatus(workers=2, target_workers=2, max_num_seqs=4, max_step_rows=4096, dtype="float32")
