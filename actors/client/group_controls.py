"""GroupControls: other weights, pauses and sleeps of an engine's group, and of the next one if it is lost meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.client.group_failover import GroupFailover
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.scheduling.holds import Hold, Running, check_level

if TYPE_CHECKING:
    from actors.workers.weight_broadcast import WeightBroadcast

logger = logging.getLogger("lopa.group")


class GroupControls:
    """For an engine that replaces groups."""

    def __init__(self, group: GroupFailover) -> None:
        self._group = group
        self.lost: LopaError | None = None
        """Why there is no group any more; see `AsyncRayEngine.revive`."""
        self._changing = asyncio.Lock()  # one pause, sleep or change of weights at a time
        self._settled = asyncio.Event()  # a group runs and has all requests, or none could take over
        self._settled.set()

    @property
    def weight_version(self) -> int:
        """The version of the weights; 0: those that were loaded."""
        return self._group.spec.weights.version

    async def update_weights(
        self,
        source: str | Path | Mapping[str, Any] | WeightBroadcast,
        *,
        version: int | None = None,
        running: Running = "wait",
    ) -> int:
        """See `LocalEngine.update_weights`. A folder has to be on every node; tensors go there once, through Ray's
        object store. All workers change at the same step, and workers that come later have the same weights. A group
        that takes the place of one that was lost before all had staged them begins again; later it starts with them.
        Raises also WorkerError, and WorkerLostError if no group could take over."""
        from actors.workers.weight_broadcast import WeightBroadcast
        from actors.workers.weight_chunks import put_tensors

        async with self._changing:
            spec = self._group.spec
            if isinstance(source, WeightBroadcast):
                source = await source.receive()
            elif isinstance(source, Mapping):
                source = await asyncio.to_thread(put_tensors, source)
            weights = spec.weights.next(source, version)
            prepared = None
            while prepared is not self._group.master or not self._settled.is_set():
                prepared = await self._order("prepare_weights", weights, running, undo="update")
            self._group.spec = replace(spec, weights=weights)
            await self._order("commit_weights", weights.version)
            return weights.version

    async def pause(self, running: Running = "wait") -> None:
        """See `LocalEngine.pause`."""
        async with self._changing:
            await self._order("hold", "pause", running, undo="pause")
            self._group.standing["pause"] = ("hold", "pause", "keep")

    async def resume(self) -> None:
        async with self._changing:
            self._group.standing.pop("pause", None)
            await self._order("release", "pause")

    async def is_paused(self) -> bool:
        return "pause" in self._group.standing

    async def sleep(self, level: int = 1) -> None:
        """See `LocalEngine.sleep`."""
        check_level(level)
        async with self._changing:
            await self._order("sleep", level)
            self._group.standing["sleep"] = ("sleep", level)

    async def wake_up(self) -> None:
        """See `LocalEngine.wake_up`."""
        async with self._changing:
            self._group.standing.pop("sleep", None)
            await self._order("wake_up")

    async def is_sleeping(self) -> bool:
        return "sleep" in self._group.standing

    async def reset_prefix_cache(self) -> None:
        """Drop the stored prefixes of prompts, before the next step."""
        await self._order("reset_prefix_cache")

    async def _order(self, method: str, *arguments: Any, undo: Hold | None = None) -> Any:
        """Call the master, and if its group is lost, the master of the next one; returns the one that has answered.
        `undo`: the hold to release if the caller does not wait any more. Raises what the master raises, and
        WorkerLostError if no group could take over."""
        while True:
            await self._settled.wait()
            if self.lost is not None:
                raise self.lost
            master = self._group.master
            try:
                await self._group.call(method, *arguments)
                return master
            except asyncio.CancelledError:
                if undo is not None:
                    master.release.remote(undo)
                raise
            except WorkerLostError as error:
                logger.warning(f"{method} was interrupted: {str(error).splitlines()[0]}")
                if self._group.master is master:  # the loss is not noticed yet
                    self._settled.clear()
