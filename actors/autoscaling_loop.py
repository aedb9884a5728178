"""LoadFollower: looks at the load of a group now and then, and has the crew follow it."""

from __future__ import annotations

import asyncio
import logging
import time

from actors.group_membership import GroupMembership
from lopa_ray.config.scaling_settings import ScalingSettings
from lopa_ray.scheduling.autoscaler import Autoscaler, LoadMeter
from lopa_ray.scheduling.scheduler import Scheduler

logger = logging.getLogger("lopa.group")


class AutoscalingLoop:
    """Between an `Autoscaler`, which decides, and the crew that it decides about. `meter` is told of every step."""

    def __init__(self, settings: ScalingSettings, crew: GroupMembership, scheduler: Scheduler) -> None:
        """Begins with as many workers as the crew should have by now. Needs a running event loop."""
        self._settings = settings
        self._crew = crew
        self._scheduler = scheduler
        self._autoscaler = Autoscaler(settings, crew.target)
        self.meter = LoadMeter()
        self._task = asyncio.create_task(self._run())

    def resize(self, num_workers: int) -> None:
        """Somebody wants that many, and the load is followed from there on.

        Raises SettingsError beyond the bounds.
        """
        self._settings.check(num_workers)
        self._autoscaler.override(num_workers, time.monotonic())

    def close(self) -> None:
        """Follow no longer."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s)
            load = self.meter.take_load(
                time.monotonic(),
                workers=len(self._crew.pool),
                in_flight=self._scheduler.in_flight,
                waiting=self._scheduler.waiting,
            )
            wanted = self._autoscaler.observe(load)
            if wanted == self._crew.target:
                continue
            logger.info("%d workers instead of %d, for %s", wanted, self._crew.target, load)
            try:
                self._crew.resize(wanted)
            except Exception:
                # The group goes on with those whom it has.
                logger.exception("%d workers instead of %d could not be had", wanted, len(self._crew.pool))
