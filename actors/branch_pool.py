"""BranchPool: the branch workers of a group as Ray actors: placed, started, joined, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.branch_worker import BranchWorker, RunnerFactory, WorkerInfo, default_runner
from actors.elastic_group import Membership, open_store
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.device import DEVICES
from lopa_ray.errors import CapacityError, LopaError, TransferError, WorkerError, WorkerLostError
from lopa_ray.plan import StepPlan, StepReport


def actor_options(config: Config) -> dict[str, Any]:
    """What one worker asks of Ray. The master owns replacement, so Ray restarts nothing."""
    group, resource = config.group, DEVICES[config.model.device].ray_resource
    options: dict[str, Any] = {"num_cpus": group.num_cpus, "max_restarts": 0, "max_task_retries": 0}
    resources = dict(group.resources)
    if resource == "GPU":
        options["num_gpus"] = group.num_accelerators
    elif resource != "CPU":
        resources[resource] = group.num_accelerators
    if resources:
        options["resources"] = resources
    return options


def uses_store(config: Config) -> bool:
    """Whether K/V travels by object store rather than by collective."""
    shared = config.model.device != "cpu" and config.group.num_accelerators < 1
    return config.group.transfer == "object_store" or (config.group.transfer == "auto" and shared)


def check_room(config: Config, room: dict[str, float]) -> None:
    """Raises CapacityError if the workers need more than `room` (resource → amount)."""
    options = actor_options(config)
    wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0.0), **options.get("resources", {})}
    for name, each in wanted.items():
        needed = each * config.group.num_workers
        if needed > room.get(name, 0.0):
            raise CapacityError(
                f"{config.group.num_workers} workers need {needed:g} {name}, but Ray has "
                f"{room.get(name, 0.0):g}; lower num_workers or what each worker takes, or add nodes"
            )


class BranchPool:
    """Handles of the workers of one epoch. Methods that wait run inside the master's event loop."""

    def __init__(self, config: Config, runner_factory: RunnerFactory = default_runner) -> None:
        """Create the actors; `start` has them load the model."""
        self.epoch = -1
        self._config = config
        self._store, self._store_address = open_store()
        self._by_store = uses_store(config)
        remote: Any = ray.remote(BranchWorker).options(**actor_options(config))
        self._workers: list[Any] = [
            remote.remote(config, runner_factory, uses_store=self._by_store)
            for _ in range(config.group.num_workers)
        ]

    def __len__(self) -> int:
        return len(self._workers)

    async def start(self) -> WorkerInfo:
        """Wait until all workers have loaded the model, and join them.

        Raises what loading raised, or WorkerLostError if a worker died or took too long.
        """
        loads = [w.load.remote() for w in self._workers]
        try:
            infos: list[WorkerInfo] = await self._gather(
                loads, self._config.group.start_timeout_s, "load the model"
            )
        except WorkerLostError as error:
            raise WorkerLostError(f"{error}; free in the cluster: {ray.available_resources()}") from None
        await self.join()
        return infos[0]

    async def join(self) -> None:
        """Enter the next epoch: a new collective group, whatever became of the one before.

        Raises WorkerLostError if a worker does not join.
        """
        self.epoch += 1
        timeout = self._config.group.step_timeout_s
        collective = DEVICES[self._config.model.device].collective
        size = len(self._workers)
        joins = [
            worker.join.remote(Membership(self.epoch, rank, size, self._store_address, collective, timeout))
            for rank, worker in enumerate(self._workers)
        ]
        await self._gather(joins, self._config.group.start_timeout_s, "join its group")

    def scatter(self, plans: Sequence[StepPlan]) -> list[Any]:
        """Send each worker its plan; `gather` waits for the answers."""
        payloads = self._exports(plans[0]) if self._by_store else []
        return [w.step.remote(plan, *payloads) for w, plan in zip(self._workers, plans, strict=True)]

    async def gather(self, calls: list[Any]) -> list[StepReport]:
        """All workers' reports. Raises WorkerLostError, or what a worker raised."""
        return await self._gather(calls, self._config.group.step_timeout_s, "answer a step")

    def _exports(self, plan: StepPlan) -> list[Any]:
        """References that Ray resolves before the step call runs; nobody waits for them here."""
        return [
            self._workers[work.source].export.remote(work) for work in plan.work if work.source is not None
        ]

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot."""
        calls = [w.checksums.remote() for w in self._workers]
        return await self._gather(calls, self._config.group.step_timeout_s, "answer")

    @staticmethod
    async def _gather(refs: list[Any], timeout: float, what: str) -> list[Any]:
        """All results. Waits for every call to settle before an error is raised, so that no worker is
        still busy with the step when the caller goes on."""
        tasks = [asyncio.wrap_future(ref.future()) for ref in refs]
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        errors = {rank: task.exception() for rank, task in enumerate(tasks) if task not in pending}
        for rank, error in errors.items():
            # First of all: a peer that still waits may wait for the one that died.
            if isinstance(error, RayActorError):
                raise WorkerLostError(f"worker {rank} died: {error}")
        for rank, task in enumerate(tasks):
            if task in pending:
                raise WorkerLostError(f"worker {rank} did not {what} within {timeout:g} s")
        causes = [_cause(rank, error) for rank, error in errors.items() if error is not None]
        if causes:
            # Where one worker failed by itself, the others only lost touch with it.
            raise next((cause for cause in causes if not isinstance(cause, TransferError)), causes[0])
        return [task.result() for task in tasks]

    def close(self) -> None:
        """End all workers, and free what they took."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []


def _cause(rank: int, error: BaseException) -> LopaError:
    """What a worker raised, without Ray's wrapping; whatever is not one of our errors becomes one."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, LopaError):
        return cause
    wrapped = WorkerError(f"worker {rank} failed: {type(cause).__name__}: {cause}")
    wrapped.__cause__ = error
    return wrapped
