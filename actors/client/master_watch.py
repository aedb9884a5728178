"""MasterWatch: asks a master how its group is doing, and says when the group has to be given up."""

from __future__ import annotations

import asyncio
from typing import Any

from actors.calls.actor_errors import unwrapped_errors
from actors.calls.rpc import is_answered
from actors.group.master_status import MasterStatus
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.errors import WorkerLostError

PERIOD_S = 1.0  # seconds between two questions
STALL_FACTOR = 1.5  # a step that takes this many times its own deadline means that the master itself is stuck
FAILED_STEPS_FACTOR = 2  # a request can cause so many failed steps with others, and as many alone


class MasterWatch:
    """Detects masters that run but are of no use: they do not answer, are stuck in a step, fail every step, or have
    ended their group while no request was in flight."""

    def __init__(self, group: GroupSettings) -> None:
        self.status: MasterStatus | None = None
        self._group = group

    async def run(self, master: Any) -> WorkerLostError:
        """Watch a master (an actor) until its group has to be given up, and return why. Raises WorkerLostError."""
        self.status = None
        while True:
            await asyncio.sleep(PERIOD_S)
            with unwrapped_errors():
                asked = asyncio.ensure_future(master.status.remote())
                if not await is_answered(asked, self._group.hung_after_s):
                    silence = f"the group's master did not answer for {self._group.hung_after_s:g} s"
                    return WorkerLostError(silence)
                status: MasterStatus = asked.result()
            self.status = status
            if (fault := self._fault(status)) is not None:
                return WorkerLostError(fault)
            if status.broken is not None:
                # Requests in flight hear it from their stream, with what they need to go on elsewhere.
                await asyncio.sleep(PERIOD_S)
                return WorkerLostError(f"the group has ended: {status.broken}")

    def _fault(self, status: MasterStatus) -> str | None:
        limit_s = STALL_FACTOR * self._group.step_timeout_s
        if status.stalled_s > limit_s:
            return f"the group has been in one step for {status.stalled_s:.0f} s; its limit is {limit_s:g} s"
        allowed = FAILED_STEPS_FACTOR * (status.max_num_seqs + 1)
        if status.failed_steps > allowed:
            return (
                f"the last {status.failed_steps} steps of the group have failed; the requests in flight can be the "
                f"cause of {allowed} at most"
            )
        return None
