"""Which masters an engine gives up though they are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

import actors.client.master_watch
from actors.client.master_watch import FAILED_STEPS_FACTOR, STALL_FACTOR, MasterWatch
from actors.group.master_status import MasterStatus
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.errors import WorkerLostError
from support.master_statuses import HEALTHY

STEP_TIMEOUT_S = 30.0


class FakeMaster:
    """An actor that answers with one status after the other, and then no more."""

    def __init__(self, *statuses: MasterStatus) -> None:
        self._statuses = list(statuses)
        self.status = self

    async def _answer(self) -> MasterStatus:
        if not self._statuses:
            await asyncio.Event().wait()
        return self._statuses.pop(0)

    def remote(self) -> Coroutine[Any, Any, MasterStatus]:
        return self._answer()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.client.master_watch, "PERIOD_S", 0.001)
    monkeypatch.setattr(GroupSettings, "hung_after_s", 0.05)


def watch(*statuses: MasterStatus) -> tuple[MasterWatch, str]:
    """The watch of a master with these statuses, and why it gave the master up."""
    watching = MasterWatch(GroupSettings(step_timeout_s=STEP_TIMEOUT_S))
    loss = asyncio.run(watching.run(FakeMaster(*statuses)))
    assert isinstance(loss, WorkerLostError)
    return watching, str(loss)


def test_one_that_does_not_answer() -> None:
    busy = replace(
        HEALTHY,
        stalled_s=STALL_FACTOR * STEP_TIMEOUT_S,
        failed_steps=FAILED_STEPS_FACTOR * (HEALTHY.max_num_seqs + 1),
    )
    watching, reason = watch(HEALTHY, busy)
    assert watching.status == busy
    assert reason == "the group's master did not answer for 0.05 s"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            replace(HEALTHY, stalled_s=STALL_FACTOR * STEP_TIMEOUT_S + 1),
            "the group has been in one step for 46 s; its limit is 45 s",
        ),
        (
            replace(HEALTHY, failed_steps=FAILED_STEPS_FACTOR * 5 + 1),
            "the last 11 steps of the group have failed; the requests in flight can be the cause of 10 at most",
        ),
        (
            replace(HEALTHY, broken=WorkerLostError("no worker is left")),
            "the group has ended: no worker is left",
        ),
    ],
)
def test_one_that_is_of_no_use(status: MasterStatus, reason: str) -> None:
    assert watch(HEALTHY, status)[1] == reason
