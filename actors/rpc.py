"""RPCBatch: one call to each of several workers. PendingRPCs: waiting for their replies."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from actors.step_connection import ConnectionLostError
from actors.worker_handle import WorkerHandle
from lopa_ray.errors import (
    ActorStartError,
    LopaError,
    TransferError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
)

ACTOR_DEATHS = (RayActorError, OutOfMemoryError, ConnectionLostError)
"""Errors of calls of an actor that has ended. OutOfMemoryError: Ray's memory monitor ended it to protect the node.
ConnectionLostError: the actor is alive, but plans do not reach it, so it is replaced as well."""

NEVER_BEGAN = (ActorUnschedulableError, RuntimeEnvSetupError)
"""Errors of calls of an actor whose process could not be started."""

_OUT_OF_MEMORY = re.compile("out of memory|(allocate|enough) memory", re.IGNORECASE)
"""Parts of torch's messages about a lack of memory, on CPUs and accelerators."""


@dataclass(frozen=True, slots=True)
class RPCBatch:
    """By worker, in order of rank: a call or a future per shard."""

    replies: dict[WorkerHandle, tuple[Any, ...]]
    exports: dict[WorkerHandle, tuple[Any, ...]] = field(default_factory=dict)
    """Calls that others wait for: K/V that travels by object store."""

    def pending_exports(self) -> list[WorkerHandle]:
        """Workers whose exports have not arrived yet."""
        return [worker for worker, calls in self.exports.items() if not all(map(_is_done, calls))]


class PendingRPCs:
    """Waiting for calls. To be made inside the event loop."""

    def __init__(self, batch: RPCBatch) -> None:
        self._tasks = {worker: tuple(map(_as_future, calls)) for worker, calls in batch.replies.items()}

    async def wait(
        self,
        timeout: float,
        on_error: Callable[[], None] = lambda: None,
        without: Collection[WorkerHandle] = (),
    ) -> None:
        """Wait until the calls of all workers but those of `without` are done, or `timeout` seconds have passed.

        `on_error` is called after errors; it has to release the workers that wait for a failed one.
        """
        deadline = time.monotonic() + timeout
        pending = {task for worker, tasks in self._tasks.items() if worker not in without for task in tasks}
        while pending:
            left = max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            if not pending or not any(task.exception() for task in done):
                return
            on_error()
            self._release_peers()

    def _release_peers(self) -> None:
        """A call that failed may not even have begun, and the worker's other shards wait for that one."""
        for worker, tasks in self._tasks.items():
            if len(worker.shards) == len(tasks) > 1:
                for shard, task in zip(worker.shards, tasks, strict=True):
                    if task.done() and task.exception() is not None:
                        shard.leave_groups.remote()

    def unanswered(self) -> list[WorkerHandle]:
        """Workers that have not replied."""
        return [worker for worker, tasks in self._tasks.items() if not all(task.done() for task in tasks)]

    def results(self) -> Iterator[tuple[WorkerHandle, tuple[Any, ...], list[BaseException]]]:
        """Per worker what its shards answered, or what they raised. For calls that are done."""
        for worker, tasks in self._tasks.items():
            errors = [error for task in tasks if task.done() and (error := task.exception()) is not None]
            yield worker, () if errors else tuple(task.result() for task in tasks if task.done()), errors


def is_death(error: BaseException) -> bool:
    """Whether the error means that the actor died, rather than that the actor raised it."""
    return isinstance(error, ACTOR_DEATHS) and not isinstance(error, RayTaskError)


def describe_death(error: BaseException) -> str:
    """Why an actor died, from an error of `ACTOR_DEATHS`, and what to do about it if the node lacks memory."""
    if isinstance(error, OutOfMemoryError):
        # Further lines list the processes of the node.
        return f"{MEMORY_ADVICE} ({str(error).splitlines()[0]})"
    return str(error)


async def death_of_worker(worker: WorkerHandle, error: BaseException) -> str:
    """`describe_death`, for a worker. A connection that breaks does not say why, and Ray may know."""
    if isinstance(error, ConnectionLostError):
        calls = [_as_future(call) for call in worker.call("ping")]
        await asyncio.wait(calls, timeout=REASON_TIMEOUT_S)
        reasons = [call.exception() for call in calls if call.done()]
        error = next((reason for reason in reasons if reason is not None and is_death(reason)), error)
    return describe_death(error)


IN_A_STEP = "answer a step"

REASON_TIMEOUT_S = 1.0
"""How long Ray may take to say why a worker has died; the group waits."""

MEMORY_ADVICE = (
    "Ray's memory monitor killed it, because the memory of its node was nearly full: run less on the node, lower "
    "group.num_workers, model.max_num_seqs or model.max_model_len, or raise RAY_memory_usage_threshold (0.95) where "
    "Ray is started"
)

_STEP_TOO_LARGE = (
    "a step of this request needs more memory than there is: lower num_branches or block_size, or, for all requests, "
    "model.max_num_seqs or model.max_model_len"
)
_MODEL_TOO_LARGE = (
    "model and cache need more memory than there is: lower model.max_num_seqs or model.max_model_len, quantize the "
    "model (model.quantization), or spread it over more devices (group.tensor_parallel_size)"
)


def cause_of(worker: str, what: str, error: BaseException) -> LopaError:
    """What a worker raised while it was to do `what`, without Ray's wrapping. Another error than a LopaError is wrapped
    in a WorkerError, in a WorkerMemoryError for a lack of memory, in a TransferError where a peer or an object was
    lost, or in a ClusterError where its process could not be started."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, LopaError):
        return cause
    if isinstance(cause, NEVER_BEGAN):
        return _cannot_start(worker, cause)
    kind: type[LopaError] = WorkerError
    if isinstance(cause, (*ACTOR_DEATHS, ObjectLostError)):
        kind = TransferError
    message = f"{worker} failed: {type(cause).__name__}: {cause}"
    if isinstance(cause, MemoryError) or _OUT_OF_MEMORY.search(message):
        message += f"; {_STEP_TOO_LARGE if what == IN_A_STEP else _MODEL_TOO_LARGE}"
        kind = WorkerMemoryError
    wrapped = kind(message)
    wrapped.__cause__ = error
    return wrapped


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Around results of a master's calls: this project's errors come without Ray's wrapping.

    Raises WorkerLostError for a master that died, and ClusterError for one that could not be started.
    """
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, LopaError):
            raise error.cause from None
        raise
    except ACTOR_DEATHS as error:
        raise WorkerLostError(f"the group's master died: {describe_death(error)}") from None
    except NEVER_BEGAN as error:
        raise _cannot_start("the group's master", error) from None


def _cannot_start(actor: str, error: Exception) -> ActorStartError:
    # A failed runtime environment comes as a traceback, whose last line has the reason.
    lines = str(error).strip().splitlines()
    said = lines[-1:] if isinstance(error, RuntimeEnvSetupError) else lines
    return ActorStartError(f"Ray cannot start {actor}: {' '.join(said)}")


async def is_answered(asked: asyncio.Future[Any], timeout_s: float) -> bool:
    """Whether a call is done within that time; otherwise it is cancelled."""
    # Twice half of the time: if this process itself was stopped, one wait is over at once, and not both.
    for _ in range(2):
        await asyncio.wait((asked,), timeout=timeout_s / 2)
        if asked.done():
            return True
    asked.cancel()
    return False


def _as_future(call: Any) -> asyncio.Future[Any]:
    return call if isinstance(call, asyncio.Future) else asyncio.wrap_future(call.future())


def _is_done(call: Any) -> bool:
    return bool(ray.wait([call], timeout=0, fetch_local=False)[0])
