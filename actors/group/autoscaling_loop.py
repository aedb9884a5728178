"""AutoscalingLoop: measures the load of a group at intervals that fit its workers' starts, and resizes the group."""

from __future__ import annotations

import asyncio
import logging

from actors.group.group_membership import GroupMembership
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.scheduling.autoscaler import LOOKS_PER_START, Autoscaler, LoadMeter
from lopa_ray.scheduling.scheduler import Scheduler

logger = logging.getLogger("lopa.group")


class AutoscalingLoop:
    """Applies the decisions of an `Autoscaler` to its group. `meter` records every step."""

    def __init__(self, group: GroupSettings, membership: GroupMembership, scheduler: Scheduler) -> None:
        """Begins with as many workers as the group should have by now. Needs a running event loop."""
        assert group.scaling is not None
        self._group = group
        self._membership = membership
        self._scheduler = scheduler
        self._autoscaler = Autoscaler(group.scaling, group.num_workers, membership.target)
        self.meter = LoadMeter()
        self._task = asyncio.create_task(self._run())

    def resize(self, num_workers: int) -> None:
        """Set the number by hand; the load is followed from there. Raises SettingsError beyond the bounds."""
        self._group.check_resize(num_workers)
        self._autoscaler.override(num_workers)

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._membership.pending.start_s / LOOKS_PER_START)
            load = self.meter.take_load(
                workers=len(self._membership.pool),
                in_flight=self._scheduler.in_flight,
                waiting=self._scheduler.waiting,
            )
            target = self._autoscaler.observe(load)
            if target == self._membership.target:
                continue
            logger.info("%d workers instead of %d, for %s", target, self._membership.target, load)
            try:
                self._membership.resize(target)
            except Exception:
                # The group goes on with the workers that it has.
                logger.exception(
                    "%d workers instead of %d could not be had", target, len(self._membership.pool)
                )
