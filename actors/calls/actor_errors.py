"""Errors of actor calls: raised by the actor, or by Ray because the actor is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import (
    ActorUnschedulableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from lopa_ray.errors import (
    ActorStartError,
    LopaError,
    TransferError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
)


class ConnectionLostError(Exception):
    """The connection to a worker broke, though it is alive."""


ACTOR_DEATHS = (RayActorError, OutOfMemoryError, ConnectionLostError)
"""Errors of a call whose actor is gone: it died, Ray's memory monitor killed it, or its step connection broke."""

NEVER_BEGAN = (ActorUnschedulableError, RuntimeEnvSetupError)  # of an actor whose process could not start

_OUT_OF_MEMORY = re.compile("out of memory|(allocate|enough) memory", re.IGNORECASE)
"""Parts of torch's messages about a lack of memory, on CPUs and accelerators."""


def is_death(error: BaseException) -> bool:
    """Whether the error means that the actor died, rather than that the actor raised it."""
    return isinstance(error, ACTOR_DEATHS) and not isinstance(error, RayTaskError)


def describe_death(error: BaseException) -> str:
    """Why an actor died, from an error of `ACTOR_DEATHS`, and what to do about it if the node lacks memory."""
    if isinstance(error, OutOfMemoryError):
        # Further lines list the processes of the node.
        return f"{MEMORY_ADVICE} ({str(error).splitlines()[0]})"
    return str(error)


IN_A_STEP = "answer a step"

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
    """The error that a worker raised while it did `what`, without Ray's wrapping. An error that is not a LopaError is
    wrapped in one: lack of memory, a lost peer or object, or a process that could not be started."""
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
    """Raises this project's errors without Ray's wrapping, for results of a master's calls. A master that died is a
    WorkerLostError, a master that could not be started a ClusterError."""
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
