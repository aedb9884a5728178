"""What a decode group's health check tells Serve, which replaces a replica that fails it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from actors.master_status import MasterStatus
from cluster.serving.replica.group_server import FAILED_STEPS_FACTOR, STALL_FACTOR, GroupServer
from lopa_ray.errors import ClusterError, LopaError, WorkerLostError
from support.tiny_model import TINY_MODEL

STEP_TIMEOUT_S = 0.2

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
    out_of_memory_steps=0,
    max_step_rows=None,
    dtype="float32",
)


class FakeEngine:
    """Has the status that it is given, or none."""

    def __init__(
        self, status: MasterStatus | None = HEALTHY, *, resuming: bool = False, lost: LopaError | None = None
    ) -> None:
        self._status, self.resuming, self.lost = status, resuming, lost

    async def status(self) -> MasterStatus:
        if self._status is None:
            await asyncio.Event().wait()
        assert self._status is not None
        return self._status


def check(engine: FakeEngine | None) -> None:
    config: dict[str, Any] = {"model": {"path": str(TINY_MODEL)}, "group": {"step_timeout_s": STEP_TIMEOUT_S}}
    server = GroupServer("demo", config)
    server._engine = engine
    asyncio.run(server.check_health())


@pytest.mark.parametrize(
    "engine",
    [
        FakeEngine(),
        FakeEngine(None, resuming=True),
        FakeEngine(dataclasses.replace(HEALTHY, failed_steps=FAILED_STEPS_FACTOR * 4 + 1)),
    ],
)
def test_a_group_that_decodes_or_goes_on_elsewhere_is_healthy(engine: FakeEngine) -> None:
    check(engine)


@pytest.mark.parametrize(
    ("engine", "error_type", "message"),
    [
        (None, ClusterError, "not started"),
        (FakeEngine(lost=WorkerLostError("no other group")), WorkerLostError, "no other group"),
        (FakeEngine(None), TimeoutError, None),
        (
            FakeEngine(dataclasses.replace(HEALTHY, broken=WorkerLostError("no worker is left"))),
            WorkerLostError,
            "is broken: no worker is left",
        ),
        (
            FakeEngine(dataclasses.replace(HEALTHY, stalled_s=STALL_FACTOR * STEP_TIMEOUT_S + 1)),
            WorkerLostError,
            r"in one step for 1 s; its limit is 0\.3 s",
        ),
        (
            FakeEngine(dataclasses.replace(HEALTHY, failed_steps=FAILED_STEPS_FACTOR * 4 + 2)),
            WorkerLostError,
            "the last 10 steps .* have failed; the requests in flight can be the cause of 9",
        ),
    ],
)
def test_a_group_that_is_lost_or_stuck_is_not(
    engine: FakeEngine | None, error_type: type[Exception], message: str | None | None
) -> None:
    with pytest.raises(error_type, match=message):
        check(engine)
