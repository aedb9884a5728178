"""HeldGroup: a master's part in what happens between two steps: other weights, a pause, a sleep."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from actors.group.group_membership import GroupMembership
from lopa_ray.errors import LopaError, ProtocolError, WorkerLostError
from lopa_ray.model.checkpoint.weight_source import WeightSource
from lopa_ray.scheduling.holds import Hold, Running
from lopa_ray.scheduling.scheduler import Scheduler


class HeldGroup(ABC):
    """Its methods raise WorkerLostError, as all calls of a lost group do, if no worker is left."""

    scheduler: Scheduler
    membership: GroupMembership

    def __init__(self) -> None:
        self._work_arrived = asyncio.Event()
        self._started = asyncio.Event()
        self._boundary = asyncio.Event()  # a step has ended
        self._workers_lock = asyncio.Lock()  # held while the workers are called
        self._preparing = asyncio.Lock()  # until an update that is given up has ended, no other begins
        self._broken: LopaError | None = None  # why no request is taken any more

    @abstractmethod
    def _end(self, error: LopaError) -> None:
        """The group cannot go on."""

    @property
    def _change_due(self) -> bool:
        """A group that sleeps stays as it is."""
        return self.membership.change_due and "sleep" not in self.scheduler.holds.reached

    async def prepare_weights(self, source: WeightSource, running: Running) -> None:
        """Stage weights, and `hold` for them. Raises CheckpointError, SettingsError and what else a worker raises, and
        ProtocolError if the hold is released meanwhile."""
        await self._started.wait()
        async with self._preparing:
            try:
                await self.membership.stage(source)
                await self.hold("update", running)
            except BaseException:
                self.membership.discard()
                raise

    async def commit_weights(self, version: int) -> None:
        """Compute with the staged weights from now on; nothing to do for a group that was started with them."""
        await self._started.wait()
        if self.scheduler.weight_version != version:
            await self._between_steps(self.membership.commit())
            self.scheduler.weight_version = version
        await self.release("update")

    async def sleep(self, level: int) -> None:
        """See `LocalEngine.sleep`."""
        await self.hold("sleep", "keep")
        await self._between_steps(self.membership.sleep(level))

    async def wake_up(self) -> None:
        if "sleep" in self.scheduler.holds.reached:
            await self._between_steps(self.membership.wake_up())
        await self.release("sleep")

    async def _between_steps(self, change: Coroutine[Any, Any, None]) -> None:
        """Under a hold. Requests that have begun get their K/V computed anew."""
        async with self._workers_lock:
            self.scheduler.suspend()
            try:
                await change
            except WorkerLostError as error:
                self._end(error)
                raise

    async def hold(self, reason: Hold, running: Running) -> None:
        """See `Scheduler.hold`; returns when it is reached. Raises ProtocolError if it is released meanwhile."""
        await self._started.wait()
        self.scheduler.hold(reason, running)
        self._work_arrived.set()
        while not self.scheduler.is_held(reason):
            if self._broken is not None:
                raise self._broken
            if reason not in self.scheduler.holds:
                raise ProtocolError(f"{reason} was given up")
            self._boundary.clear()
            await self._boundary.wait()

    async def release(self, reason: Hold) -> None:
        if reason == "update":
            self.membership.discard()
        self.scheduler.holds.remove(reason)
        self._work_arrived.set()
        self._boundary.set()

    async def reset_prefix_cache(self) -> None:
        """Drop stored prefixes before the next step, as a change of membership does."""
        await self._started.wait()
        self.membership.pool.intact = False
        self._work_arrived.set()
