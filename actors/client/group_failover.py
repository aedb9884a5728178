"""GroupFailover: the group that an engine has at the moment, and another group in its place when it is lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorHandleNotFoundError

from actors.calls.actor_errors import unwrapped_errors
from actors.calls.worker_handle import RunnerFactory, WorkerInfo
from actors.group.master import Master
from actors.group.start_phases import StartPhases
from actors.workers.placement import Reservation, remove_own_groups
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.execution.model_spec import ModelSpec

logger = logging.getLogger("lopa.group")

MAX_CALLS = 1000  # calls that a master serves at once

RETRY_PAUSE_S = 1.0
"""Seconds between two attempts to replace a lost group. Ray goes on placing actors on a lost node until the node has
missed several health checks, 10 to 20 seconds by default; such an attempt fails, and the next may not."""


class GroupFailover:
    """A master actor with its workers, and the stream of its events; one group after the other."""

    def __init__(self, config: ExecutionConfig, runner_factory: RunnerFactory | None, name: str) -> None:
        """Reserves the bundles of the workers and starts the first master's process, in the time that reading the
        checkpoint's tokenizer takes. `name`: see `AsyncRayEngine.start`."""
        self.reservation = Reservation(config)
        self.stream: Any = None  # yields `StepEvents` (object references), until the group is lost
        self.spec: ModelSpec
        self.phases: dict[str, float] = {}  # see `AsyncRayEngine.start_phases`
        self._config = config
        self._name = name
        self._runner_factory = runner_factory
        self.standing: dict[str, tuple[Any, ...]] = {}
        """Calls of the master, with their arguments, that a next group gets as well."""
        self._create_master()

    def _create_master(self) -> None:
        self._clock = StartPhases()
        # The master computes next to nothing; it must not take a CPU from its workers.
        remote: Any = ray.remote(Master).options(num_cpus=0, max_restarts=0, max_concurrency=MAX_CALLS)
        self.master = remote.remote(self._name)
        """The actor of the group started last; calls raise WorkerLostError when it is killed."""

    async def start(self, spec: ModelSpec) -> WorkerInfo:
        """Start the first group. Raises what `Master.start` raises; no actors are left then."""
        self._clock.end("checkpoint")
        self.spec = spec
        return await self._start()

    async def _start(self) -> WorkerInfo:
        try:
            info: WorkerInfo
            reserved = self.reservation.placement_group
            info, phases = await self.call("start", self.spec, self._runner_factory, reserved)
            self.stream = self.master.stream.options(num_returns="streaming").remote()
        except BaseException:
            self.kill()
            raise
        self._clock.end("master")
        own = self._clock.seconds
        own["master"] -= sum(phases.values())
        self.phases = own | phases
        listed = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self.phases.items())
        logger.info(f"a group is ready after {sum(self.phases.values()):.2f} s ({listed})")
        return info

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the master. Raises what it raises, and WorkerLostError if it is lost."""
        with unwrapped_errors():
            return await getattr(self.master, method).remote(*arguments)

    async def resize(self, num_workers: int) -> None:
        """See `Master.resize`. A group that takes the place of this one will have as many workers."""
        await self.call("resize", num_workers)
        self.standing["resize"] = ("resize", num_workers)

    async def replace(self, loss: LopaError) -> None:
        """Start another group, with the weights, of the size and in the state that were asked for last. Raises
        WorkerLostError, which names `loss` too."""
        timeout_s = self._config.group.start_timeout_s
        failure: Exception | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        self.kill()
                        self._create_master()
                        await self._start()
                        for standing in self.standing.values():
                            await self.call(*standing)
                        return
                    except WorkerLostError as error:
                        failure = error
                        await asyncio.sleep(RETRY_PAUSE_S)
        except Exception as error:
            if failure is None or not isinstance(error, TimeoutError):
                failure = error
        if isinstance(failure, TimeoutError):
            reason = f"it did not start within {timeout_s:g} s"
        elif isinstance(failure, LopaError):
            reason = str(failure)
        else:
            reason = f"{type(failure).__name__}: {failure}"
        raise WorkerLostError(f"{loss}; no other group could take over: {reason} (see group.start_timeout_s)")

    def close(self) -> None:
        self.kill()
        self.reservation.release()

    def kill(self) -> None:
        """End the group. The workers end with the master, because they are its children."""
        if ray.is_initialized():
            with suppress(ActorHandleNotFoundError):  # the master ended when Ray was shut down
                ray.kill(self.master)
            if self._config.group.tensor_parallel_size > 1:
                remove_own_groups(self.master._actor_id.hex())
