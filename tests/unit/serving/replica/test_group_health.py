"""What a decode group's health check tells Serve, which replaces a replica that fails it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.group.master_status import MasterStatus
from cluster.serving.replica.group_server import GroupServer
from lopa_ray.errors import ClusterError, LopaError, WorkerLostError
from support.master_statuses import HEALTHY
from support.tiny_model import TINY_MODEL


class FakeEngine:
    """Has the status that it is given, or none."""

    def __init__(self, status: MasterStatus | None = None, *, lost: LopaError | None = None) -> None:
        self.last_status, self.lost, self.lost_groups = status, lost, 0


def check(engine: FakeEngine | None) -> None:
    config: dict[str, Any] = {"model": {"path": str(TINY_MODEL)}}
    server = GroupServer("demo", config)
    server._engine = engine
    asyncio.run(server.check_health())


@pytest.mark.parametrize("engine", [FakeEngine(), FakeEngine(HEALTHY)])
def test_a_group_that_decodes_or_is_being_replaced_is_healthy(engine: FakeEngine) -> None:
    check(engine)


@pytest.mark.parametrize(
    ("engine", "error_type", "message"),
    [
        (None, ClusterError, "not started"),
        (FakeEngine(HEALTHY, lost=WorkerLostError("no other group")), WorkerLostError, "no other group"),
    ],
)
def test_one_that_cannot_be_replaced_is_not(
    engine: FakeEngine | None, error_type: type[Exception], message: str
) -> None:
    with pytest.raises(error_type, match=message):
        check(engine)
